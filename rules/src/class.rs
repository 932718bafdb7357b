//! What becomes of one entry.

use ah_plugin_api::OmitReason;

/// What becomes of one entry of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// Captured; no ignore rule matches.
    Captured,
    /// Captured: an ignore rule matches, but the user's index has it, so it is not ignored.
    Tracked,
    /// Ignored, and captured all the same by policy: small, or included. Of a directory: with everything below it.
    Kept,
    /// An ignored directory that may have something captured below it (tracked or included). If it turns out to have
    /// nothing, it is omitted as [`OmitReason::Ignored`] with this rule.
    Through {
        /// The rule that ignores it, for a person.
        rule: String,
    },
    /// Not captured.
    Omitted {
        /// Why.
        reason: OmitReason,
        /// More about it for a person: the rule that matched, the size.
        detail: Option<String>,
        /// Whether the entry's own attributes (its size) decided, so that it must be asked again when they change.
        by_size: bool,
    },
}

impl Class {
    /// Whether it is captured ([`Class::Through`]: if something below it is).
    #[must_use]
    pub fn is_captured(&self) -> bool {
        !matches!(self, Self::Omitted { .. })
    }

    /// Whether it is ignored as Git would say.
    #[must_use]
    pub fn is_ignored(&self) -> bool {
        match self {
            Self::Captured | Self::Tracked => false,
            Self::Kept | Self::Through { .. } => true,
            Self::Omitted { reason, .. } => *reason == OmitReason::Ignored,
        }
    }

    pub(crate) fn omitted(reason: OmitReason, detail: Option<String>) -> Self {
        Self::Omitted { reason, detail, by_size: false }
    }
}
