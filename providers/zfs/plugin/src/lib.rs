//! The ZFS provider as a loadable plugin: exports [`ah_provider_zfs`] and nothing else.

ah_plugin_api::export_provider!(ah_provider_zfs::ZfsProvider::new());
