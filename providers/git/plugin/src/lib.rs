//! The Git provider as a loadable plugin: exports [`ah_provider_git`] and nothing else.
