//! JSON files with a version: what a newer version added survives a rewrite, an older file is migrated with a backup.
//!
//! A member that is not known survives at the top. A known one stays as it was written, with all that is not known in it, until it
//! is changed: then only those of its parts do that were not, as what else was said of it may have been of the former one.
//!
//! A file that is damaged, or something else in its place, is read from its newest readable backup. Up to five backups (`<file>.bak1`, the newest, to `.bak5`) are kept.

use std::fs;
use std::path::Path;

use ah_plugin_api::{Durability, Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::fsio::{self, suffixed};

const BACKUPS: u32 = 5;

/// What can be kept in such a file. It must serialise to an object without a field `version`.
pub(crate) trait Versioned: Serialize + DeserializeOwned {
    /// The version that this program writes.
    const VERSION: u64;

    /// Brings the fields of an older version up to date.
    fn migrate(fields: Map<String, Value>, from: u64) -> Map<String, Value> {
        let _ = from;
        fields
    }
}

/// A value with what else stood in its file.
#[derive(Debug, Clone)]
pub(crate) struct Doc<T> {
    pub(crate) value: T,
    /// What stood there.
    read: Map<String, Value>,
    /// What is known of that, as it would have been written.
    known: Map<String, Value>,
    version: u64,
}

impl<T: Versioned> Doc<T> {
    /// A value for a new file.
    pub(crate) fn new(value: T) -> Self {
        Self { value, read: Map::new(), known: Map::new(), version: T::VERSION }
    }

    /// Reads a file, or where it is damaged its newest readable backup; none if it is not there.
    ///
    /// # Errors
    /// `DataLoss` if neither can be read; another where the file may be there, and newer: for want of memory, say.
    pub(crate) fn load(path: &Path) -> Result<Option<Self>> {
        let error = match fsio::read(path) {
            Ok(None) => return Ok(None),
            Ok(Some(bytes)) => match Self::parse(&bytes) {
                Ok((doc, None)) => return Ok(Some(doc)),
                Ok((doc, Some(older))) => {
                    let backup = suffixed(path, &format!("v{older}"));
                    if !backup.exists() {
                        fsio::replace(&backup, &bytes, Durability::Durable)?;
                    }
                    fsio::replace(path, &doc.render()?, Durability::Durable)?;
                    return Ok(Some(doc));
                }
                Err(error) => {
                    let message = format!("{} is damaged, and no backup of it can be read", path.display());
                    Error::new(ErrorKind::DataLoss, message).with_cause(&error)
                }
            },
            Err(error) if error.kind == ErrorKind::DataLoss => error,
            Err(error) => return Err(error),
        };
        Self::newest_backup(path)?.map(Some).ok_or(error)
    }

    /// The newest backup that can be read, for a file that is never taken away by itself and yet is gone.
    pub(crate) fn newest_backup(path: &Path) -> Result<Option<Self>> {
        for n in 1..=BACKUPS {
            if let Some(bytes) = fsio::read(&suffixed(path, &format!("bak{n}")))?
                && let Ok((doc, _)) = Self::parse(&bytes)
            {
                return Ok(Some(doc));
            }
        }
        Ok(None)
    }

    /// Writes a new file and, if that can be, a backup, of which there would be none before it is first changed. The backup never says more than the file, which
    /// is on disk before it begins; that a power cut takes it is nothing to wait for.
    pub(crate) fn save_new(&self, path: &Path) -> Result<()> {
        self.save_plain(path)?;
        let kept = fsio::replace_whole(&suffixed(path, "bak1"), &self.render()?);
        // A former one says what is not so any more.
        kept.or_else(|_| Self::forget_backup(path))
    }

    /// Takes away the backup that [`Self::save_new`] made.
    pub(crate) fn forget_backup(path: &Path) -> Result<()> {
        fsio::remove_file(&suffixed(path, "bak1"))
    }

    /// Writes the file, keeping the former one as a backup.
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        self.writable(path)?;
        // Only once the new one is on disk: where there is no room for it, nothing is to take the place of the oldest backup.
        fsio::replace_after(path, &self.render()?, Durability::Durable, || {
            if path.exists() {
                rotate(path);
            }
        })
    }

    /// Writes the file without backups.
    pub(crate) fn save_plain(&self, path: &Path) -> Result<()> {
        self.writable(path)?;
        fsio::replace(path, &self.render()?, Durability::Durable)
    }

    fn writable(&self, path: &Path) -> Result<()> {
        if self.version > T::VERSION {
            let message = format!("{} was written by a newer version of ah", path.display());
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("use that version"));
        }
        Ok(())
    }

    fn render(&self) -> Result<Vec<u8>> {
        let own = match serde_json::to_value(&self.value) {
            Ok(Value::Object(own)) => own,
            Ok(_) => return Err(Error::new(ErrorKind::Internal, "a file's value is not an object")),
            Err(e) => return Err(Error::new(ErrorKind::Internal, "a file's value cannot be written").with_cause(&e)),
        };
        let mut fields = self.read.clone();
        fields.retain(|key, _| !self.known.contains_key(key));
        fields.insert("version".to_owned(), Value::from(self.version));
        // Over what is there: what can be left out may have been written as `null`.
        fields.extend(kept_members(&self.read, &self.known, own));
        let mut bytes = serde_json::to_vec_pretty(&Value::Object(fields))
            .map_err(|e| Error::new(ErrorKind::Internal, "a file's value cannot be written").with_cause(&e))?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// The document, and its version if that is an older one.
    fn parse(bytes: &[u8]) -> serde_json::Result<(Self, Option<u64>)> {
        let mut fields: Map<String, Value> = serde_json::from_slice(bytes)?;
        let version = fields.remove("version").and_then(|v| v.as_u64()).unwrap_or(0);
        if version < T::VERSION {
            fields = T::migrate(fields, version);
        }
        let value: T = serde_json::from_value(Value::Object(fields.clone()))?;
        let known = match serde_json::to_value(&value)? {
            Value::Object(known) => known,
            _ => Map::new(),
        };
        let older = (version < T::VERSION).then_some(version);
        Ok((Self { value, read: fields, known, version: version.max(T::VERSION) }, older))
    }
}

/// What is to be written of a value: what stood there, where it is the same. `known`: what was known of that.
fn kept(read: &Value, known: &Value, now: Value) -> Value {
    if *known == now {
        return read.clone();
    }
    match (read, known, now) {
        (Value::Object(read), Value::Object(known), Value::Object(now)) => {
            Value::Object(kept_members(read, known, now))
        }
        (Value::Array(read), Value::Array(known), Value::Array(now)) if read.len() == known.len() => {
            let mut left: Vec<_> = read.iter().zip(known).filter(|(read, known)| is_read_as(read, known)).collect();
            let element = |now: Value| match left.iter().position(|(_, known)| **known == now) {
                Some(at) => left.remove(at).0.clone(),
                None => now,
            };
            Value::Array(now.into_iter().map(element).collect())
        }
        (_, _, now) => now,
    }
}

/// The same of the members that there are now.
fn kept_members(read: &Map<String, Value>, known: &Map<String, Value>, now: Map<String, Value>) -> Map<String, Value> {
    let member = |key: &str, now| match (read.get(key), known.get(key)) {
        (Some(read), Some(known)) => kept(read, known, now),
        _ => now,
    };
    now.into_iter().map(|(key, now)| (key.clone(), member(&key, now))).collect()
}

/// Whether what stood at a place in a list is what is known of that place: where its order does not count, it may be another one's.
fn is_read_as(read: &Value, known: &Value) -> bool {
    match (read, known) {
        (Value::Object(read), Value::Object(known)) => {
            known.iter().all(|(key, known)| read.get(key).is_none_or(|read| is_read_as(read, known)))
        }
        (Value::Array(read), Value::Array(known)) => {
            read.len() == known.len() && read.iter().zip(known).all(|(read, known)| is_read_as(read, known))
        }
        // An enumeration's text that is not known.
        (Value::String(_), Value::String(known)) if known == "unknown" => true,
        (read, known) => read == known,
    }
}

/// What a folder's documents (`*.json`) say, and for each that cannot be read why not, and what to do.
pub(crate) fn load_all<T: Versioned>(folder: &Path) -> Result<(Vec<T>, Vec<Error>)> {
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    for name in fsio::names(folder)? {
        let path = folder.join(&name);
        if !name.ends_with(".json") {
            continue;
        }
        match Doc::load(&path) {
            Ok(doc) => found.extend(doc.map(|doc| doc.value)),
            Err(error) if error.kind == ErrorKind::DataLoss => {
                let put_aside = fsio::put_aside(&path);
                unreadable.push(error.with_hint(format!(
                    "bring it back from a backup, or do without it, and nothing is kept for it any more: `{put_aside}`"
                )));
            }
            // What cannot be read for a moment is not to be done without.
            Err(error) => unreadable.push(error),
        }
    }
    Ok((found, unreadable))
}

/// What was found if all of it could be read; for who must not miss any.
pub(crate) fn whole<T>((found, unreadable): (Vec<T>, Vec<Error>)) -> Result<Vec<T>> {
    unreadable.into_iter().next().map_or(Ok(found), Err)
}

/// Backups are a convenience: what fails here fails silently, as the file itself is replaced atomically.
fn rotate(path: &Path) {
    for n in (1..BACKUPS).rev() {
        let _ = fs::rename(suffixed(path, &format!("bak{n}")), suffixed(path, &format!("bak{}", n + 1)));
    }
    let _ = fs::hard_link(path, suffixed(path, "bak1"));
}

#[cfg(test)]
mod tests {
    use super::{Doc, Map, Value, Versioned, fsio, suffixed};
    use crate::crash;
    use serde::{Deserialize, Serialize};
    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Two {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    }

    impl Versioned for Two {
        const VERSION: u64 = 2;
        fn migrate(mut fields: Map<String, Value>, from: u64) -> Map<String, Value> {
            if from < 2
                && let Some(title) = fields.remove("title")
            {
                fields.insert("name".into(), title);
            }
            fields
        }
    }

    #[test]
    fn unknown_fields_survive_and_known_ones_can_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.json");
        std::fs::write(&path, r#"{"version":2,"name":"a","note":"n","later":{"x":[1]}}"#).unwrap();
        let mut doc = Doc::<Two>::load(&path).unwrap().unwrap();
        doc.value.note = None;
        doc.value.name = "b".into();
        doc.save(&path).unwrap();
        let value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(value, serde_json::json!({"version":2,"name":"b","later":{"x":[1]}}));
    }

    #[test]
    fn what_was_written_as_nothing_can_be_written_as_something() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.json");
        std::fs::write(&path, r#"{"version":2,"name":"a","note":null}"#).unwrap();
        let mut doc = Doc::<Two>::load(&path).unwrap().unwrap();
        doc.value.note = Some("n".into());
        doc.save(&path).unwrap();
        assert_eq!(Doc::<Two>::load(&path).unwrap().unwrap().value.note.as_deref(), Some("n"));
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        A,
        B,
        #[serde(other)]
        Unknown,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Part {
        kind: Kind,
        at: u64,
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Whole {
        ended: Option<u64>,
        part: Part,
        list: Vec<Part>,
        set: BTreeSet<Kind>,
        keyed: BTreeMap<String, Part>,
    }

    impl Versioned for Whole {
        const VERSION: u64 = 1;
    }

    /// What of a file of a newer version is in it once an older one has changed it.
    fn changed(change: impl FnOnce(&mut Whole)) -> (Value, Value) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.json");
        let former = serde_json::json!({
            "version": 1,
            "ended": null,
            "later": {"x": 1},
            "part": {"kind": "later", "at": 1, "more": 1},
            "list": [{"kind": "a", "at": 1, "more": 1}, {"kind": "later", "at": 2, "more": [2]}],
            "set": ["b", "a"],
            "keyed": {"x": {"kind": "later", "at": 1, "more": 1}, "y": {"kind": "later", "at": 2, "more": 2}},
        });
        std::fs::write(&path, former.to_string()).unwrap();
        let mut doc = Doc::<Whole>::load(&path).unwrap().unwrap();
        change(&mut doc.value);
        doc.save(&path).unwrap();
        (former, serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap())
    }

    #[test]
    fn what_is_not_changed_stays_as_a_newer_version_wrote_it() {
        let (mut former, now) = changed(|whole| whole.ended = Some(7));
        former["ended"] = 7.into();
        assert_eq!(now, former);
    }

    #[test]
    fn of_what_is_changed_only_what_is_known_is_written() {
        let (former, now) = changed(|whole| {
            whole.part.at = 9;
            whole.list.remove(0);
            whole.list.push(Part { kind: Kind::B, at: 3 });
            whole.set.remove(&Kind::B);
            whole.keyed.remove("x");
        });
        // What else was said may have been of the former one.
        assert_eq!(now["part"], serde_json::json!({"kind": "later", "at": 9}));
        assert_eq!(now["list"], serde_json::json!([former["list"][1], {"kind": "b", "at": 3}]));
        assert_eq!(now["set"], serde_json::json!(["a"]));
        assert_eq!(now["keyed"], serde_json::json!({"y": former["keyed"]["y"]}));
        assert_eq!(now["later"], former["later"]);
    }

    #[test]
    fn an_older_file_is_migrated_with_a_backup() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.json");
        let old = r#"{"version":1,"title":"a","x":1}"#;
        std::fs::write(&path, old).unwrap();
        assert_eq!(Doc::<Two>::load(&path).unwrap().unwrap().value.name, "a");
        assert_eq!(std::fs::read_to_string(suffixed(&path, "v1")).unwrap(), old);
        let value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(value, serde_json::json!({"version":2,"name":"a","x":1}));
    }

    #[test]
    fn what_cannot_be_written_takes_no_backup_away() {
        let dir = tempfile::tempdir().unwrap();
        // There is room in a folder for the names of backups, and none for the longer one of what is being written.
        let path = dir.path().join("f".repeat(248));
        let (file, backup) = (r#"{"version":2,"name":"present"}"#, r#"{"version":2,"name":"former"}"#);
        std::fs::write(&path, file).unwrap();
        std::fs::write(suffixed(&path, "bak1"), backup).unwrap();
        for _ in 0..5 {
            Doc::new(Two { name: "new".into(), note: None }).save(&path).unwrap_err();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), file);
        assert_eq!(std::fs::read_to_string(suffixed(&path, "bak1")).unwrap(), backup);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_former_backup_of_what_is_new_goes_where_there_is_no_room_for_another() {
        let dir = tempfile::tempdir().unwrap();
        // There is room in a folder for the name of what is being written, and none for the longer one of a backup that is.
        let longer = fsio::temp_beside(&dir.path().join("f")).file_name().unwrap().len();
        let path = dir.path().join("f".repeat(255 - longer - 1));
        std::fs::write(suffixed(&path, "bak1"), r#"{"version":2,"name":"former"}"#).unwrap();
        Doc::new(Two { name: "new".into(), note: None }).save_new(&path).unwrap();
        assert_eq!(Doc::<Two>::load(&path).unwrap().unwrap().value.name, "new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_new_is_on_disk_before_its_backup_which_waits_for_no_folder() {
        let dir = tempfile::tempdir().unwrap();
        thread_local!(static STEPS: RefCell<Vec<String>> = RefCell::default());
        assert!(crash::set_hook(|step| {
            STEPS.with_borrow_mut(|steps| steps.push(step.to_owned()));
            Ok(())
        }));
        let path = dir.path().join("f.json");
        Doc::new(Two { name: "new".into(), note: None }).save_new(&path).unwrap();
        let put = ["create", "write", "sync", "rename"].map(|step| format!("replace.{step}"));
        assert_eq!(STEPS.take(), [&put[..], &["replace.sync-dir".into()], &put].concat());
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(suffixed(&path, "bak1")).unwrap());
    }

    #[test]
    fn a_damaged_file_is_read_from_its_backup_and_five_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.json");
        for n in 0..9 {
            Doc::new(Two { name: n.to_string(), note: None }).save(&path).unwrap();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 6);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(Doc::<Two>::load(&path).unwrap().unwrap().value.name, "7");
    }

    #[test]
    fn a_newer_file_is_read_but_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.json");
        std::fs::write(&path, r#"{"version":3,"name":"a"}"#).unwrap();
        let doc = Doc::<Two>::load(&path).unwrap().unwrap();
        assert_eq!(doc.value.name, "a");
        assert!(doc.save(&path).is_err());
    }
}
