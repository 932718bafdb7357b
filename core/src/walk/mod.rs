//! Differences by walking both sides, for providers that have no diff of their own. (H7's.)

use ah_plugin_api::{Changes, Context, DiffRequest, Place, Provider, Result};

/// Answers `request` as a provider with a diff would, by `read_dir` and `read`, or a mount where these are not to be had.
/// `place` has the store, the workspace where a side is the workspace, and as target a folder for mounts.
///
/// # Errors
/// The provider's; those of reading the workspace.
pub fn diff(provider: &dyn Provider, place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
    let _ = (provider, place, request, cx);
    Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
}
