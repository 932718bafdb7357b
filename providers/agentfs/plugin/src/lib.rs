//! The AgentFS provider as a loadable plugin: exports [`ah_provider_agentfs`] and nothing else.

ah_plugin_api::export_provider!(ah_provider_agentfs::AgentFsProvider::new());
