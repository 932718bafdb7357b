//! What was made for whom: a file for each view and clone, written before it is made and removed after it is gone.
//!
//! So whatever a killed helper left is found again: a record that is not `ready` is something half-made, a view whose mount is gone is
//! one to forget, a clone whose mount is gone is mounted again.
//!
//! What is being removed has a second file beside its record, from when its user does not see it any more until it is gone: so nobody works in what
//! a killed helper left of it, and the next one goes on. Room for that file is made before anything is done; a removal that fails takes it away, for which
//! no room is needed.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ah_plugin_api::{Context, Error, ErrorKind, FileName, ProviderName, Reference, Result};
use serde::{Deserialize, Serialize};

use crate::{accounts, policy, state};

/// What the file beside the record of something that is being removed ends with, and the file that becomes it.
const GOING: &str = "going";
const ROOM_FOR_GOING: &str = "going-tmp";

/// What was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Made {
    View,
    Clone,
}

impl Made {
    /// The folder of the state in which the provider makes it, if it needs one.
    pub(crate) fn workshop(self) -> &'static str {
        match self {
            Self::View => "shown",
            Self::Clone => "clones",
        }
    }
}

/// How a mount is known again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Its number in /proc/self/mountinfo, which may be given to another one after it is gone.
    pub(crate) id: u64,
    /// The number that is given to no other one, where the kernel has such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unique: Option<u64>,
    /// The directory that it shows.
    pub(crate) dev: (u32, u32),
    pub(crate) ino: u64,
    /// The run of the machine.
    pub(crate) boot: String,
}

/// A view or a clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) made: Made,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) token: String,
    /// The inner provider.
    pub(crate) provider: ProviderName,
    /// Its reference to the snapshot.
    pub(crate) snapshot: Reference,
    /// Its reference to what it made, once it has.
    pub(crate) inner: Option<Reference>,
    /// The directory that is shown, once it is known.
    pub(crate) source: Option<Text>,
    /// Where the user wants it, by name and by what it is.
    pub(crate) target: Text,
    pub(crate) target_dev: (u32, u32),
    pub(crate) target_ino: u64,
    pub(crate) name: Text,
    pub(crate) mark: Option<Mark>,
    pub(crate) ready: bool,
    /// Whether it was whole, and its removal was begun; in a file of its own.
    #[serde(skip)]
    pub(crate) going: bool,
}

/// Bytes that are mostly text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Text {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&Path> for Text {
    fn from(path: &Path) -> Self {
        Self::from(path.as_os_str().as_bytes())
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(bytes.to_vec()),
        }
    }
}

impl Text {
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Text(text) => text.into(),
            Self::Bytes(bytes) => std::ffi::OsString::from_vec(bytes.clone()).into(),
        }
    }
}

impl Record {
    /// The name in the target.
    pub(crate) fn name(&self) -> Result<FileName> {
        FileName::new(self.name.path().as_os_str().as_bytes())
    }

    /// Its id, as a name to hand to a provider.
    pub(crate) fn id_name(&self) -> Result<FileName> {
        FileName::new(self.id.as_bytes())
    }

    /// What the user knows it by.
    pub(crate) fn reference(&self) -> Result<Reference> {
        let kind = match self.made {
            Made::View => "view",
            Made::Clone => "clone",
        };
        Reference::new(format!("{kind}:{}", self.id))
    }

    /// Whether it is what its user was told of.
    pub(crate) fn is_whole(&self) -> bool {
        self.ready && !self.going
    }

    /// Where it is for the user.
    pub(crate) fn place(&self) -> PathBuf {
        self.target.path().join(self.name.path())
    }
}

/// All records, in memory as on disk.
pub(crate) struct Records {
    folder: PathBuf,
    all: Mutex<BTreeMap<String, Record>>,
    /// Those that a call works on.
    claimed: Mutex<HashSet<String>>,
    /// The first file that could not be read: of whom it is, and what it stands for, nobody knows.
    unread: Option<PathBuf>,
}

/// The right to work on a record, until dropped.
pub(crate) struct Claim<'a> {
    records: &'a Records,
    id: String,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.records.claimed().remove(&self.id);
    }
}

impl Records {
    /// Reads all of `folder`; a file that cannot be read is told to `warn`.
    pub(crate) fn open(folder: PathBuf, warn: &mut dyn FnMut(String)) -> Result<Self> {
        let mut all = BTreeMap::new();
        let cannot = |e: std::io::Error| Error::from_io("cannot read the records", &e);
        let mut unread = None;
        for entry in std::fs::read_dir(&folder).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(id) = name.strip_suffix(".json") else {
                // Was being written when its writer was killed; or its record has gone.
                if !name.strip_suffix(".going").is_some_and(|id| folder.join(format!("{id}.json")).exists()) {
                    let _ = std::fs::remove_file(&path);
                }
                continue;
            };
            let read = std::fs::read(&path).map_err(|e| e.to_string());
            if read.as_ref().is_ok_and(|bytes| is_of_lost_view(bytes, id)) {
                let _ = std::fs::remove_file(&path);
                continue;
            }
            let why = match read.and_then(|bytes| serde_json::from_slice::<Record>(&bytes).map_err(|e| e.to_string())) {
                Ok(mut record) if record.id == id => {
                    record.going = path.with_extension(GOING).exists();
                    all.insert(id.to_owned(), record);
                    continue;
                }
                Ok(_) => "is of something else".to_owned(),
                Err(why) => format!("cannot be read: {why}"),
            };
            warn(format!("the record {} {why}; as long as it is there, no store is given back", path.display()));
            unread.get_or_insert(path);
        }
        Ok(Self { folder, all: Mutex::new(all), claimed: Mutex::default(), unread })
    }

    /// A file that could not be read, if there is one.
    pub(crate) fn unread(&self) -> Option<&Path> {
        self.unread.as_deref()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claimed(&self) -> MutexGuard<'_, HashSet<String>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that `wanted` says yes to.
    pub(crate) fn find(&self, wanted: impl Fn(&Record) -> bool) -> Vec<Record> {
        self.all().values().filter(|record| wanted(record)).cloned().collect()
    }

    /// The record as it is now.
    pub(crate) fn get(&self, id: &str) -> Option<Record> {
        self.all().get(id).cloned()
    }

    /// The right to work on a record.
    pub(crate) fn claim(&self, id: &str) -> Result<Claim<'_>> {
        if !self.claimed().insert(id.to_owned()) {
            return Err(Error::new(ErrorKind::Busy, "another call is working on that at this moment")
                .with_hint("wait a little, then repeat"));
        }
        Ok(Claim { records: self, id: id.to_owned() })
    }

    /// The same, once who works on it is done, if that is before `until`: each connection has shown again what is its user's, which takes a moment.
    pub(crate) fn claim_by(&self, id: &str, until: Instant, cx: &Context<'_>) -> Result<Claim<'_>> {
        loop {
            match self.claim(id) {
                Err(_) if Instant::now() < until => cx.check_cancelled()?,
                claimed => return claimed,
            }
            std::thread::sleep(policy::MOMENT);
        }
    }

    /// Puts a new record among the others, claimed, unless its user has `limit` of the kind.
    pub(crate) fn begin(&self, record: &Record, limit: usize) -> Result<Claim<'_>> {
        let claim = self.claim(&record.id)?;
        {
            let (mut all, account) = (self.all(), accounts::of(record.uid));
            let count =
                all.values().filter(|other| other.made == record.made && accounts::of(other.uid) == account).count();
            if count >= limit {
                let what = match record.made {
                    Made::View => "views",
                    Made::Clone => "clones",
                };
                return Err(Error::new(
                    ErrorKind::ResourceExhausted,
                    format!("you have {limit} {what} with the helper ahd, which is the limit"),
                )
                .with_hint(format!(
                    "ah agent fs release --all; ah agent fs branches; an administrator sets limits.{what} in ahd.conf"
                )));
            }
            all.insert(record.id.clone(), record.clone());
        }
        if let Err(error) = self.write(record) {
            self.all().remove(&record.id);
            return Err(error);
        }
        Ok(claim)
    }

    /// Writes down how far a record has come.
    pub(crate) fn save(&self, record: &Record) -> Result<()> {
        self.write(record)?;
        self.all().insert(record.id.clone(), record.clone());
        Ok(())
    }

    /// Makes room for [`Self::going`]. What is there of it then says nothing.
    pub(crate) fn make_room_for_going(&self, id: &str) -> Result<()> {
        let path = self.path(id).with_extension(ROOM_FOR_GOING);
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
        options.open(&path).map_err(|e| Error::from_io(format!("cannot write {}", path.display()), &e))?;
        Ok(())
    }

    /// Writes down that what is whole is being removed: its user does not see it any more. The record must be claimed.
    pub(crate) fn going(&self, id: &str) -> Result<()> {
        let path = self.path(id).with_extension(GOING);
        std::fs::rename(path.with_extension(ROOM_FOR_GOING), &path)
            .map_err(|e| Error::from_io(format!("cannot write {}", path.display()), &e))?;
        state::sync(&self.folder)?;
        self.all().entry(id.to_owned()).and_modify(|record| record.going = true);
        Ok(())
    }

    /// Writes down that it stays what it was, after all.
    pub(crate) fn stays(&self, id: &str) -> Result<()> {
        self.forget_going(id)?;
        self.all().entry(id.to_owned()).and_modify(|record| record.going = false);
        Ok(())
    }

    fn forget_going(&self, id: &str) -> Result<()> {
        let _ = std::fs::remove_file(self.path(id).with_extension(ROOM_FOR_GOING));
        match std::fs::remove_file(self.path(id).with_extension(GOING)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::from_io(format!("the record {id} goes on saying that it is removed"), &e))
            }
            _ => Ok(()),
        }
    }

    fn write(&self, record: &Record) -> Result<()> {
        let (path, temp) = (self.path(&record.id), self.folder.join(format!("{}.tmp", record.id)));
        let failed = |e: std::io::Error| Error::from_io(format!("cannot write {}", path.display()), &e);
        let text = serde_json::to_vec(record).map_err(|e| failed(e.into()))?;
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
        // A view does not outlive the machine's run; a clone must be found after a power cut.
        let durable = record.made == Made::Clone;
        let written = options.open(&temp).and_then(|mut file| {
            file.write_all(&text)?;
            if durable { file.sync_data() } else { Ok(()) }
        });
        let renamed = written.and_then(|()| std::fs::rename(&temp, &path));
        renamed.map_err(|e| {
            let _ = std::fs::remove_file(&temp);
            failed(e)
        })?;
        if durable { state::sync(&self.folder) } else { Ok(()) }
    }

    /// Forgets a record: what it stood for is gone.
    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        match std::fs::remove_file(self.path(id)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::from_io(format!("cannot remove the record {id}"), &e))
            }
            _ => {
                self.all().remove(id);
                // Without its record it says nothing.
                let _ = self.forget_going(id);
                Ok(())
            }
        }
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }
}

/// Whether that is what a power cut leaves of a view's record: nothing, or its beginning. A clone's is on disk before it is in its place.
fn is_of_lost_view(bytes: &[u8], id: &str) -> bool {
    let written = bytes.iter().rposition(|&byte| byte != 0).map_or(&[] as &[u8], |last| &bytes[..=last]);
    let begins = written.starts_with(format!(r#"{{"id":"{id}","made":"view","#).as_bytes());
    written.is_empty() || (begins && serde_json::from_slice::<Record>(written).is_err_and(|e| e.is_eof()))
}

/// A new id.
pub(crate) fn new_id() -> Result<String> {
    let number = getrandom::u64().map_err(|_| Error::new(ErrorKind::Internal, "there are no random numbers"))?;
    Ok(format!("{number:016x}"))
}
