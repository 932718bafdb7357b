//! For tests: the Btrfs provider as a plugin, built with them.

ah_plugin_api::export_provider!(ah_provider_btrfs::BtrfsProvider::new());
