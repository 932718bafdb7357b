//! The Git provider as a loadable plugin: exports [`ah_provider_git`] and nothing else.

ah_plugin_api::export_provider!(ah_provider_git::GitProvider::new());
