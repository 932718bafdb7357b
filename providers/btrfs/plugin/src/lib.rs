//! The Btrfs provider as a loadable plugin: exports [`ah_provider_btrfs`] and nothing else.

ah_plugin_api::export_provider!(ah_provider_btrfs::BtrfsProvider::new());
