//! The nouns of the contract: ids, times, entries, snapshots, capabilities. Requests are in [`crate::request`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::path::RelPath;
use crate::text;

/// Declares a string newtype that checks its text on every way in.
macro_rules! text_newtype {
    ($(#[$meta:meta])* $name:ident, $max:literal, $ok:expr, $what:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks and takes over `text`.
            ///
            /// # Errors
            #[doc = concat!("`InvalidArgument` if it is not ", $what, ".")]
            pub fn new(text: impl Into<String>) -> Result<Self, Error> {
                let text = text.into();
                let ok: fn(u8) -> bool = $ok;
                if text.is_empty() || text.len() > $max || !text.bytes().all(ok) {
                    return Err(Error::new(ErrorKind::InvalidArgument, format!(concat!("{:?} is not ", $what), text)));
                }
                Ok(Self(text))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<Self, Error> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(this: $name) -> Self {
                this.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

text_newtype! {
    /// The id of a snapshot, given by the caller of `snapshot`; unique within a store.
    SnapshotId, 64, |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-', "an id (1 to 64 of a-z, 0-9, -)"
}

text_newtype! {
    /// A provider's own reference to a snapshot or a clone: opaque to everyone else, stable for the thing's life, and no other's in its store.
    Reference, 4096, |b| !b.is_ascii_control(), "a reference (1 to 4096 bytes, no control characters)"
}

text_newtype! {
    /// The name of a provider: `git`, `btrfs`, `minimal`; also the middle part of its library's file name.
    ProviderName, 32, |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_', "a provider name (1 to 32 of a-z, 0-9, _)"
}

/// A point in time as the filesystem keeps it: seconds since 1970 UTC, may be negative, and nanoseconds below 10⁹.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub secs: i64,
    /// Nanoseconds after `secs`, below 1,000,000,000.
    #[serde(deserialize_with = "below_a_second")]
    pub nanos: u32,
}

/// What is not below a second would be written down as what nobody can read again.
fn below_a_second<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let nanos = u32::deserialize(from)?;
    if nanos < 1_000_000_000 {
        Ok(nanos)
    } else {
        Err(serde::de::Error::custom("a second has 1,000,000,000 nanoseconds"))
    }
}

impl Timestamp {
    /// The present time of the system clock.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Nanoseconds since 1970-01-01T00:00:00Z, to reckon with.
    #[must_use]
    pub fn as_nanos(self) -> i128 {
        i128::from(self.secs) * 1_000_000_000 + i128::from(self.nanos)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self { secs: after.as_secs().cast_signed(), nanos: after.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                let (secs, nanos) = (before.as_secs().cast_signed(), before.subsec_nanos());
                if nanos == 0 {
                    Self { secs: -secs, nanos }
                } else {
                    Self { secs: -secs - 1, nanos: 1_000_000_000 - nanos }
                }
            }
        }
    }
}

open_enum! {
    /// How a workspace is given to an agent (`--mode`). `auto` is the caller's, not a provider's.
    pub enum Mode {
        /// The directory is captured where it is.
        InPlace = "in-place",
        /// A separate checkout.
        Worktree = "worktree",
        /// A copy-on-write view that keeps the original path.
        CowOverlay = "cow-overlay",
    }
}

open_enum! {
    /// What a provider can do or keep beyond the least that the contract asks for.
    pub enum Capability {
        /// A snapshot is one point in time, however busy the workspace is. Without it, a file that changes while it is
        /// read is read again, then omitted as [`OmitReason::Changing`].
        PointInTime = "point-in-time",
        /// `snapshot` commits before it returns, so that an `instant` snapshot is `durable`.
        AlwaysDurable = "always-durable",
        /// `clone_snapshot` makes writable copies.
        Clone = "clone",
        /// `diff` is answered cheaper than by walking both sides.
        Diff = "diff",
        /// `diff` also takes as the workspace a clone that grew from a snapshot of the store.
        DiffOfClones = "diff-of-clones",
        /// `usage` is answered.
        Usage = "usage",
        /// `read_dir`, `read` and `lookup` need no mount.
        ReadWithoutMount = "read-without-mount",
        /// Views keep write bits: they are read-only by mount, not by mode.
        ExactViewModes = "exact-view-modes",
        /// Owner and group are kept.
        Owners = "owners",
        /// Extended attributes and ACLs are kept.
        Xattrs = "xattrs",
        /// Hard links between captured files stay hard links.
        HardLinks = "hard-links",
        /// Holes stay holes.
        SparseFiles = "sparse-files",
        /// FIFOs, sockets and device nodes are kept.
        SpecialFiles = "special-files",
        /// The capture policy is applied: ignored files stay out. Without it everything is captured.
        AppliesPolicy = "applies-policy",
        /// Clones of a repository come with a `.git` of their own.
        RepositoryClones = "repository-clones",
        /// `convert` makes the workspace a unit of its own.
        Convert = "convert",
        /// What is read is checked against what was captured: damage of the store reads as `DataLoss`, never as other contents.
        FindsDamage = "finds-damage",
    }
}

open_enum! {
    /// Kinds of directory entries. What is none of these is `Special`, too: another kind in an answer is refused.
    pub enum EntryKind {
        /// A regular file.
        File = "file",
        /// A directory.
        Dir = "dir",
        /// A symbolic link.
        Symlink = "symlink",
        /// A FIFO, socket or device node.
        Special = "special",
    }
}

open_enum! {
    /// What a snapshot survives.
    pub enum Durability {
        /// A power cut, from the moment the call returned.
        Durable = "durable",
        /// The kill of any process, from the moment the call returned; a power cut after [`crate::Provider::sync`].
        Instant = "instant",
    }
}

open_enum! {
    /// Why something is not in a snapshot.
    pub enum OmitReason {
        /// Matched by an ignore rule.
        Ignored = "ignored",
        /// Matched by an exclude of the configuration.
        Excluded = "excluded",
        /// Larger than the cap.
        TooLarge = "too-large",
        /// A directory of a longer path than the provider follows.
        TooDeep = "too-deep",
        /// Changed every time it was read.
        Changing = "changing",
        /// A kind the provider cannot keep (FIFO, socket, device).
        SpecialFile = "special-file",
        /// A `.git` of a nested repository: its files are captured, its database is not.
        GitDir = "git-dir",
        /// Another filesystem, dataset or subvolume begins here.
        OtherFilesystem = "other-filesystem",
        /// This user may not read it.
        Unreadable = "unreadable",
        /// Belongs to `ah` itself.
        OwnState = "own-state",
    }
}

/// Something of the workspace that a snapshot does not hold. Restore never deletes or overwrites it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omission {
    /// The topmost path that is left out; everything below it is left out with it.
    pub path: RelPath,
    /// Why.
    pub reason: OmitReason,
    /// More about it for a person: the rule that matched, the size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What identifies contents: two entries of one store with equal ids have equal bytes. Opaque, at most 64 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContentId(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// One entry of a directory in a snapshot or a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name; empty for the root.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits (`mode & 0o7777`).
    pub mode: u32,
    /// Bytes of a file, or of a symlink's target; 0 for others.
    pub size: u64,
    /// When the contents were last modified, to the nanosecond.
    pub mtime: Timestamp,
    /// Identifies the contents where the provider knows them without reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<ContentId>,
    /// Matched by an ignore rule when it was captured (and captured all the same, by policy or because everything is).
    #[serde(default)]
    pub ignored: bool,
}

/// Where the user's repository stood at the moment of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct RepositoryState {
    /// The commit that HEAD names, in hex; none in a repository without commits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// The branch that HEAD is on (`refs/heads/main`); none when detached, and where `branch_hex` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The bytes of its name in lower-case hex, where that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch_hex: Option<String>,
    /// The root commit that first parents lead to from HEAD, in full hex: the same in every clone of a repository, so that
    /// workspaces can be grouped by it. None without commits, in a shallow repository, or where an object cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_commit: Option<String>,
    /// Why the objects that HEAD and the index name are not kept with the snapshot, where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_kept: Option<String>,
    /// Changes with the index, the refs and what is in progress, by their attributes: while it is the same, so are they. None if that
    /// cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marks: Option<String>,
}

impl RepositoryState {
    /// The name of the branch that HEAD is on, as Git has it; none when detached.
    #[must_use]
    pub fn branch_name(&self) -> Option<Vec<u8>> {
        let branch = self.branch.as_ref().map(|name| name.clone().into_bytes());
        branch.or_else(|| text::unhex(self.branch_hex.as_ref()?).ok())
    }

    /// Puts HEAD on a branch of that name.
    pub fn set_branch_name(&mut self, name: Vec<u8>) {
        (self.branch, self.branch_hex) = match String::from_utf8(name) {
            Ok(name) => (Some(name), None),
            Err(error) => (None, Some(text::hex(error.as_bytes()))),
        };
    }
}

/// A snapshot as a provider knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The id that the caller gave.
    pub id: SnapshotId,
    /// The provider's own name for it.
    pub reference: Reference,
    /// When it was taken.
    pub created: Timestamp,
    /// The label that the caller gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The attributes that the caller gave, as they were given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
    /// What it survives by now.
    pub durability: Durability,
    /// Equal for two snapshots of one store with equal trees, and for no others, where that is known cheaply. A tree is all that a snapshot shows:
    /// names, kinds, contents, symlink targets, permission bits and modification times, those of directories too, and what else the provider keeps of
    /// them. Of two snapshots that are equal `ah` may keep but one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<ContentId>,
    /// Number of captured entries, directories included, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// How many things were omitted.
    #[serde(default)]
    pub omitted_total: u64,
    /// What was omitted and why. `stat` and `snapshot` give all of it, at most 256 MiB with 64 bytes for each beside its path and detail; `list` leaves it empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<Omission>,
    /// Where the user's repository stood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<RepositoryState>,
    /// What the snapshot holds the space of beyond the workspace, for a person ("the subvolume /home"); none: nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pins: Option<String>,
    /// Of a workspace that grew from another directory and reads there what was not changed in it: what somebody changed there, so that no
    /// snapshot of it holds that. `snapshot` gives what was not given before; others give none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_below: Option<ChangedBelow>,
}

/// What was changed in the directory that a workspace grew from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedBelow {
    /// How many files.
    pub total: u64,
    /// Some of them, below the workspace.
    pub paths: Vec<RelPath>,
}

/// What a provider says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Its name.
    pub name: ProviderName,
    /// Its version, for people.
    pub version: String,
    /// Place in the order of selection, the highest first; none: used only when asked for by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The filesystems that a workspace must be on for this provider ever to serve it, as `statfs(2)` names them in `f_type`
    /// (`linux/magic.h`); empty: any. On others it is not even loaded. What such a provider captures stays on the workspace's filesystem, and counts for what
    /// is lacking there; what one for any captures lies in its store.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub filesystems: BTreeSet<u32>,
    /// What it can do and keep.
    pub capabilities: BTreeSet<Capability>,
}

/// Whether a provider can serve a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Whether snapshots can be taken here, by this user.
    pub usable: bool,
    /// Why, or why not: one sentence.
    pub reason: String,
    /// What would make it usable, or better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The modes of work it can serve here.
    #[serde(default)]
    pub modes: BTreeSet<Mode>,
    /// Whether this user can delete again what the provider makes here.
    pub can_delete: bool,
    /// What `convert` would make better here, one sentence; none: nothing, or it cannot be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub convertible: Option<String>,
}

/// A read-only view of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Where it is, absolute.
    #[serde(with = "crate::path::abs")]
    pub path: PathBuf,
    /// What `unmount` needs to find it again, also from another process.
    pub reference: Reference,
    /// Whether it is read-only for root too (a read-only mount), not by permission bits alone.
    pub read_only_mount: bool,
}

/// The name of a file that a provider whose clones are mounts leaves in a clone's place while it is not mounted, to say so. It is nobody's work.
pub const NOT_MOUNTED: &str = "NOT-MOUNTED.txt";

/// What the name of the directory begins with, beside a workspace that a provider mounts in its place ([`Converted::mounted`]), in which it was until then; the workspace's name follows.
/// A workspace around both captures and restores neither.
pub const BEHIND: &str = ".ah-behind-";

/// A writable workspace grown from a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritableClone {
    /// Where it is, absolute.
    #[serde(with = "crate::path::abs")]
    pub path: PathBuf,
    /// What `destroy` needs to find it again.
    pub reference: Reference,
    /// Anything a person should know: a configuration that was not copied, say.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Where.
    pub path: RelPath,
    /// What was there; none if added.
    pub before: Option<Entry>,
    /// What is there; none if deleted.
    pub after: Option<Entry>,
}

open_enum! {
    /// How a diff was found.
    pub enum DiffMethod {
        /// From the provider's own knowledge; cost grows with what changed.
        Native = "native",
        /// By comparing both sides entry by entry.
        Walk = "walk",
    }
}

/// The differences between two sides, ordered by path bytes, every one of them: a directory that was added or deleted is
/// listed with all that is below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// One for each path that differs in kind, contents, permission bits or (if asked for) time.
    pub changes: Vec<Change>,
    /// How they were found.
    pub method: DiffMethod,
    /// Nothing at all was written between the sides, nothing that is no difference either: no owner, no attribute, nothing of a repository's
    /// own. False where that is not known.
    #[serde(default)]
    pub untouched: bool,
    /// Of which of these one side is not known any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
    /// Directories that cannot be looked into on one side, as this user may not or as they are damaged: of what is in them nothing is told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<RelPath>,
}

/// A path at which two sides differ, while one of them cannot be read there any more: what its [`Change`] says of that side may not be
/// true. Asked about it, the snapshot that it is of answers `DataLoss`, or that nothing is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The path.
    pub path: RelPath,
    /// The snapshot certainly shows nothing there, although something may have been there to be seen when it was taken. False where that is not
    /// known.
    #[serde(default)]
    pub absent: bool,
}

/// Space in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes that removing these snapshots and no others would free, rather a little less than more; of a whole store, what is in it, without what the
    /// workspace and clones have as they are. None: not known at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// What `convert` did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Converted {
    /// Whether anything was done; false: the workspace was such a unit already, or a plain directory again.
    pub changed: bool,
    /// Whether what is at the workspace's path is mounted there now, by a process of the provider's: when that has ended, any call has it mounted again.
    #[serde(default)]
    pub mounted: bool,
    /// Anything a person should know, a sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What `reclaim` did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Reclaimed {
    /// One sentence for each thing that was finished or undone, once.
    pub actions: Vec<String>,
    /// One sentence for each thing that a person has to see to first, as long as that is so: what this store knows of it is to be kept until then.
    #[serde(default)]
    pub stays: Vec<String>,
    /// Bytes given back.
    pub bytes: u64,
    /// The writable clones whose files lie in this store: as long as there are any, it is not to be removed. Of providers that keep clones
    /// elsewhere, none.
    #[serde(default)]
    pub held: Vec<Reference>,
}
