//! The same event called twice: hooks of two places, of two installations of `ah` say, are both called.
//!
//! The session's folder keeps digests of the last events' ids, in `seen`. An event that bears no id of the agent's is never taken for another one: a
//! moment too many is better than one too few.

use ah_plugin_api::{Durability, ErrorKind, Result};

use crate::fsio;
use crate::ids::SessionName;
use crate::lock::Lock;
use crate::session;
use crate::text;
use crate::workspace::Workspace;

/// So many are remembered: more than ever come in between.
const KEPT: usize = 64;

/// Does what an event asks for, unless that has been done. It counts as done only when it is: what fails, or is killed, is done by the next call.
pub(super) fn once(
    workspace: &Workspace,
    session: &SessionName,
    event: &str,
    act: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let folder = session::folder(&workspace.folder(), session);
    let settings = workspace.engine.settings();
    let lock = |name: &str| match Lock::take(&folder.join(name), true, settings.patience_left(), &*settings.observer) {
        Err(error) if error.kind == ErrorKind::Busy => Ok(None),
        taken => taken.map(Some),
    };
    let event = text::digest(event);
    // Other events do not wait for this one; of one in sixteen, that is. Who holds it for too long may be at work for one of those.
    let _event = lock(&format!("seen-{}.lock", &event[..1]))?;
    let file = folder.join("seen");
    // Of what cannot be read nothing was seen.
    let read = || -> Vec<String> {
        let bytes = fsio::read(&file).ok().flatten();
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    if read().contains(&event) {
        return Ok(());
    }
    act()?;
    // It is done, whether that is noted or not.
    let Some(_list) = lock("seen.lock")? else { return Ok(()) };
    let mut events = read();
    events.push(event);
    let kept = events[events.len().saturating_sub(KEPT)..].join("\n");
    let _ = fsio::replace(&file, format!("{kept}\n").as_bytes(), Durability::Instant);
    Ok(())
}
