//! What killed callers left is finished or undone, what should be mounted is mounted, and what nobody needs goes.

use std::path::Path;

use ah_plugin_api::{Context, Dir, FileName, Place, ReclaimRequest, Reclaimed, Result};
use rustix::io::Errno;

use super::record::PlaceLabel;
use super::standing::names_in;
use super::{Service, alone, fail, lock};
use crate::home::{self, Shown};

impl Service {
    pub(super) fn put_in_order(
        &self,
        place: &Place<'_>,
        request: &ReclaimRequest,
        cx: &Context<'_>,
    ) -> Result<Reclaimed> {
        // What could not be opened may be by now, and who works where a directory was moved to has it found again.
        if let Some(workspace) = place.workspace
            && is_plain(workspace)?
        {
            let again = match self.current() {
                Some(open) => self.is_back(&open, &home::path_of(workspace)?),
                None => lock(&self.closed).is_some(),
            };
            if again {
                self.for_lower(workspace, cx)?;
            }
        }
        self.open_if_it_can_be(cx)?;
        let Some((open, shelf)) = self.kept(place.store, cx)? else { return Ok(Reclaimed::default()) };
        if open.bears(&shelf) {
            // On a disk that is full, the next one does.
            let _ = shelf.keep(place.store);
        }
        self.settle(&open, cx);
        self.mount_again(&open);
        let mut reclaimed = Reclaimed::default();
        // What a killed caller had begun is whole or undone by then.
        let held = if request.auto && request.forgotten.is_empty() { None } else { Some(alone(&open.making, cx)?) };
        if let Some(target) = place.target {
            let target = home::path_of(target)?;
            let is_forgotten = |at: &Path| {
                at.parent() == Some(&target)
                    && request.forgotten.iter().any(|name: &FileName| Some(name.as_os_str()) == at.file_name())
            };
            for branch in open.tree.branches() {
                cx.check_cancelled()?;
                let Ok(label) = PlaceLabel::decode(&branch.label) else { continue };
                let at = label.at();
                if label.shelf == shelf.key && is_forgotten(&at) {
                    Self::remove_branch(&open, branch.id, &at, cx)?;
                    reclaimed
                        .actions
                        .push(format!("took away the branch {} that nobody asked for any more", at.display()));
                }
            }
            for name in names_in(&self.views()?)? {
                cx.check_cancelled()?;
                let Ok(Some(label)) = self.view_label(&name) else { continue };
                let at = label.at();
                if label.shelf == shelf.key && is_forgotten(&at) {
                    self.unmount_view(&open, &name, &label)?;
                    reclaimed
                        .actions
                        .push(format!("took away the view {} that nobody asked for any more", at.display()));
                }
            }
        }
        drop(held);
        if shelf.home.is_none() {
            reclaimed.held = self.references(&open.tree)?;
        }
        let before = open.tree.used();
        if !request.auto {
            reclaimed.actions.extend(self.drop_what_lay_behind(&open, cx)?);
            Self::tell_what_is_left(&open, cx);
            open.tree.reclaim().map_err(|e| fail("cannot give space back", &e))?;
            reclaimed.bytes = before.saturating_sub(open.tree.used());
        }
        Ok(reclaimed)
    }
}

/// Whether a directory is no part of what AgentFS mounts. What was a mount as its caller opened it, and has ended, is none that anything could be found at.
fn is_plain(workspace: &Dir) -> Result<bool> {
    let has_ended = |errno| [Errno::NOTCONN, Errno::CONNABORTED].iter().any(|ended| ended.raw_os_error() == errno);
    match Shown::around(workspace) {
        Err(error) if error.errno.is_some_and(has_ended) => Ok(false),
        around => Ok(around?.is_none()),
    }
}
