//! Views that a process of ours reads for a while. A file beside each in `mounts/` says that it is shown, and of which workspace: a provider may show it anywhere, and
//! who reads it may be killed.

use std::sync::atomic::{AtomicU64, Ordering};

use ah_plugin_api::{Capability, Context, Dir, FileName, MountRequest, Place, Reference, Result, UnmountRequest, View};
use rustix::fs::{AtFlags, Mode, OFlags};

use super::{Shelf, Source};
use crate::lock::me_in_a_name;
use crate::view;

/// What stands in the file's name between the view's and the workspace's id.
const SHOWN_OF: &str = ".of-";

/// The name of the file that says that a view is shown, of that workspace.
pub(crate) fn mark_of(view: &str, workspace: &str) -> String {
    format!("{view}{SHOWN_OF}{workspace}")
}

/// The view and the workspace that such a file names; none if it is none.
pub(crate) fn of_marked(name: &str) -> Option<(&str, &str)> {
    name.split_once(SHOWN_OF)
}

impl<'a> Shelf<'a> {
    /// Mounts a view of a snapshot, for what only a directory tells.
    ///
    /// # Errors
    /// Those of `mount`.
    pub(crate) fn show(&self, snapshot: &Reference, cx: &Context<'_>) -> Result<Source<'a>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("walk-{}-{}", me_in_a_name(), NEXT.fetch_add(1, Ordering::Relaxed));
        let request =
            MountRequest { snapshot: snapshot.clone(), name: FileName::new(name.as_str())?, paths: Vec::new() };
        let place = Place::new(self.store).with_target(self.scratch);
        let mark = mark_of(&name, self.of);
        // A disk that is too full for an empty file keeps nobody from reading.
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let _ = rustix::fs::openat(self.scratch, &mark, flags, Mode::RUSR | Mode::WUSR);
        let view = view::mount(self.provider, &place, &request, self.root, cx).inspect_err(|_| self.unmark(&mark))?;
        // From here on the guard takes the view away, also if it cannot be opened.
        let mut mounted = Mounted { shelf: *self, view, mark, root: None };
        mounted.root = Some(Dir::open(&mounted.view.path)?);
        let exact_modes = self.can(Capability::ExactViewModes);
        Ok(Source::View { mounted, exact_modes })
    }

    fn unmark(&self, mark: &str) {
        let _ = rustix::fs::unlinkat(self.scratch, mark, AtFlags::empty());
    }
}

/// A view that goes away with its guard.
pub(crate) struct Mounted<'a> {
    pub(super) shelf: Shelf<'a>,
    pub(super) view: View,
    mark: String,
    pub(super) root: Option<Dir>,
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // An open directory would keep the view busy.
        self.root = None;
        let place = Place::new(self.shelf.store).with_target(self.shelf.scratch);
        let request = UnmountRequest { view: self.view.reference.clone(), unused: false };
        // A view that stays is found by gc: it has no lease.
        if self.shelf.provider.unmount(&place, &request, &Context::quiet()).is_ok() {
            self.shelf.unmark(&self.mark);
        }
    }
}
