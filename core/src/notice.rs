//! What a person should hear beside the result: collected here, printed by the caller.

use serde::Serialize;

use crate::text::text_enum;

text_enum! {
    /// What a [`Notice`] is about.
    pub enum NoticeKind {
        /// A workspace was found at a new path.
        WorkspaceMoved = "workspace-moved",
        /// Another directory is in a workspace's place, the one before was deleted or moved; its timeline goes on.
        WorkspaceMadeAnew = "workspace-made-anew",
        /// A torn last line of a timeline was cut off.
        TimelineRepaired = "timeline-repaired",
        /// Lines of a timeline cannot be read.
        TimelineDamaged = "timeline-damaged",
        /// A configuration key is not known, has a wrong value, or is not allowed where it stands.
        Config = "config",
        /// The chosen provider failed and another one took over.
        Degraded = "degraded",
        /// The process that took an automatic snapshot ended before its provider had answered.
        CaptureStopped = "capture-stopped",
        /// A plugin was not loaded.
        Plugin = "plugin",
        /// The privileged helper is there and is not used.
        Helper = "helper",
        /// A restore was interrupted.
        InterruptedRestore = "interrupted-restore",
        /// A cache was rebuilt.
        Rebuilt = "rebuilt",
        /// Anything else worth saying.
        Other = "other",
    }
}

/// One thing a person should hear.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// What it is about.
    pub kind: NoticeKind,
    /// One sentence.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Notice {
    /// A notice of `kind`.
    pub fn new(kind: NoticeKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
