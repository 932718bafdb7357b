//! Timelines, sessions, restore, leases, retention: everything but the terminal.
//!
//! - [`Engine`] and [`Workspace`] are the facade; start in `engine.rs` and `workspace.rs`. Each operation has a module of its own
//!   that adds its method to [`Workspace`] (`snapshot.rs`, `seek.rs`, `restore/`, …), with its options and its result beside it.
//! - `moments/` are the points that are marked on it, and how each comes by its snapshot.
//! - `agent/` is what agents call for, and which session of ours each of theirs is.
//! - `session_branch.rs` and `rewind/` are ways back for files and conversation together; `conversation/` is what they share.
//! - `recording/` is where recordings of a terminal lie, and how moments find their place in them.
//! - `timeline/` is the event log, `state.rs` what it amounts to, `refs/` how a person names a point in it.
//! - `home.rs`, `registry/`, `session.rs`, `fsio.rs`, `lock.rs` are the files under `$AH_HOME`.
//! - `providers.rs` and `select.rs` are where providers come from and which one serves; `attend.rs` has mounted again what one lost.
//!
//! Nothing here prints, reads the environment or names a provider: all of it is passed in by [`Settings`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agent;
mod around;
mod attend;
mod background;
pub mod beneath;
mod branch;
pub mod carry;
mod cat;
mod config;
mod conversation;
mod convert;
pub mod crash;
mod diff;
mod edit;
mod engine;
pub mod exec;
mod forget;
mod fresh;
mod fsio;
mod gc;
mod home;
mod ids;
mod ignored;
mod list;
mod lock;
mod moments;
mod mounts;
mod noted;
mod notice;
mod open;
mod place;
mod providers;
mod prune;
mod record;
pub mod recording;
mod refs;
mod registry;
pub mod restore;
mod rewind;
mod rm;
mod seek;
mod select;
mod session;
mod session_branch;
mod settings;
mod snapshot;
mod state;
mod status;
pub mod text;
mod timeline;
mod versioned;
mod view;
pub mod walk;
mod workspace;
mod wrecked;

pub use agent::{Called, HookContext, LastEvent, UnkeptCall};
pub use ah_plugin_api::{
    DiffMethod, Durability, EntryKind, Error, ErrorKind, Mode, Observer, OmitReason, ProviderName, Quiet, Reference,
    RelPath, Result, SnapshotId, Timestamp,
};
pub use branch::{BranchOptions, BranchRecord, BranchRemoved, BranchState};
pub use carry::{Carry, CarryOptions, CarryReport};
pub use config::{ConfigEntry, ConfigKey, ConfigLayer, ConfigValues, TrustReport};
pub use conversation::{ConversationReport, FromRecord};
pub use convert::{ConvertReport, convert_command};
pub use diff::{DiffOptions, DiffReport, DiffSide};
pub use edit::EditOptions;
pub use engine::{Access, Engine};
pub use exec::{ExecError, ExecOptions};
pub use forget::{Forgotten, Kept, WrittenOff};
pub use gc::{GcOptions, GcReport};
pub use ids::{BranchId, LeaseId, SessionName, WorkspaceId};
pub use ignored::TakenBy;
pub use list::{SnapshotDetails, SnapshotFilter};
pub use moments::{
    FilesChanged, Moment, MomentKind, MomentRecord, MomentTool, MomentUpdate, NewMoment, Point, RecordingPosition,
    TranscriptPosition,
};
pub use notice::{Notice, NoticeKind};
pub use open::FIRST_SNAPSHOT;
pub use providers::{ProviderSet, ProviderSource, RefusedPlugin, ServedProvider, UnusedHelper};
pub use prune::{PruneOptions, PruneReport, PruneVerdict};
pub use record::{ChangeRecord, EntryRecord, OmittedRecord, SnapshotKind, SnapshotRecord, VersionRecord};
pub use recording::{MomentFollower, Recording, RecordingVerdict};
pub use refs::reads_as_option;
pub use restore::{
    InterruptedRestore, LeftAlone, RestoreBegin, RestoreEnd, RestoreOptions, RestoreReport, UndoOptions, way_out,
};
pub use rewind::{PromptRecord, Rewind, RewindOptions, RewindReport};
pub use rm::{RmOptions, RmReport};
pub use seek::{LeaseRecord, Release, SeekOptions};
pub use select::Candidate;
pub use session::{AgentSession, Provenance, ResumeMethod, SessionEnd, SessionRecord};
pub use session_branch::{ListedSession, SessionBranchOptions, SessionBranchReport, SessionBranched};
pub use settings::{Background, Clock, HelperSocket, IdSource, Settings};
pub use snapshot::SnapshotOptions;
pub use status::{MissingWorkspace, Status};
pub use timeline::{
    Event, EventBody, FaultKind, PromptGroup, TimelineFault, TimelineFilter, TimelineReport, WorkspaceChange,
};
pub use workspace::Workspace;
