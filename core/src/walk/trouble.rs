//! Why two trees could not be compared at a path: it is damaged, the disk does not give it, or this user may not look into it.

use ah_plugin_api::{Context, Error, ErrorKind, RelPath, Result};

use super::Source;

/// Why nobody told what differs at a path or below it.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It cannot be read, or a directory above it: on which side.
    Unreadable(usize, Error),
    /// This user may not look into it, or into a directory above it.
    Shut,
    /// None any more: the disk gives by now what it did not give to who compared.
    Passed,
}

impl Trouble {
    /// What is in the way at a path, by looking again.
    ///
    /// # Errors
    /// `Cancelled`.
    pub(crate) fn at(path: &RelPath, sides: [&Source<'_>; 2], cx: &Context<'_>) -> Result<Self> {
        let mut shut = false;
        for (at, side) in sides.into_iter().enumerate() {
            match side.children(path, cx) {
                Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
                Err(error) if error.is_unreadable() => return Ok(Self::Unreadable(at, error)),
                Err(error) => shut |= error.kind == ErrorKind::PermissionDenied,
                Ok(_) => {}
            }
        }
        Ok(if shut { Self::Shut } else { Self::Passed })
    }

    /// Whether the next look may find none.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Unreadable(_, error) => error.is_of_the_disk(),
            Self::Shut => false,
            Self::Passed => true,
        }
    }
}
