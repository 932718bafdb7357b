//! What travels with a snapshot: its user properties, `org.ah-project:…`.
//!
//! A value may have 8,191 bytes and no NUL; a longer text goes on in `<name>.1`, `<name>.2`, and so on. Texts are escaped (see
//! [`crate::names::escape`]), attributes and omissions are JSON, escaped.

use std::collections::BTreeMap;
use std::ffi::CString;

use ah_plugin_api::{
    Durability, Error, ErrorKind, Omission, Reference, RelPath, Result, Snapshot, SnapshotId, SnapshotRequest,
    Timestamp,
};
use ah_provider_directory::unescape;

use crate::names::{Key, escape};

/// What all names begin with. ZFS wants a colon in them, and recommends a reversed domain name.
const PREFIX: &str = "org.ah-project:";

/// The longest piece of a value, bytes. Source: `ZAP_MAXVALUELEN`, less the NUL and some.
const PIECE: usize = 8_000;

/// More omissions than that are counted, not listed, bytes of JSON: the whole call may have 256 KiB.
const MOST_OMITTED: usize = 64 << 10;

/// Names and values of properties.
pub(crate) type Properties = BTreeMap<Vec<u8>, Vec<u8>>;

/// What is known of a snapshot from its properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// As the contract has it.
    pub(crate) snapshot: Snapshot,
    /// From the dataset's root to the workspace.
    pub(crate) rel: RelPath,
}

impl Record {
    /// What is to be recorded of a new snapshot of the workspace at `rel` in `dataset`.
    pub(crate) fn new(request: &SnapshotRequest, dataset: &str, rel: RelPath, omitted: Vec<Omission>) -> Result<Self> {
        let snapshot = Snapshot {
            id: request.id.clone(),
            reference: Reference::new(request.id.as_str())?,
            created: request.created,
            label: request.label.clone(),
            attributes: request.attributes.clone(),
            durability: Durability::Durable,
            tree: None,
            entries: None,
            omitted_total: omitted.len() as u64,
            omitted,
            repository: None,
            pins: pins(dataset, &rel),
            changed_below: None,
        };
        Ok(Self { snapshot, rel })
    }

    /// The properties that say it.
    pub(crate) fn to_properties(&self, key: &Key) -> Result<Vec<(CString, CString)>> {
        let snapshot = &self.snapshot;
        let json = |value: serde_json::Result<Vec<u8>>| {
            let bytes = value.map_err(|error| {
                Error::new(ErrorKind::InvalidArgument, "the snapshot's attributes cannot be written down")
                    .with_cause(&error)
            })?;
            Ok::<_, Error>(escape(&bytes))
        };
        let mut out = Vec::new();
        put(&mut out, "version", "1")?;
        put(&mut out, "store", &key.to_string())?;
        put(&mut out, "id", snapshot.id.as_str())?;
        put(&mut out, "created", &format!("{}.{:09}", snapshot.created.secs, snapshot.created.nanos))?;
        put(&mut out, "rel", &escape(self.rel.as_bytes()))?;
        if let Some(label) = &snapshot.label {
            put(&mut out, "label", &escape(label.as_bytes()))?;
        }
        if !snapshot.attributes.is_empty() {
            put(&mut out, "attributes", &json(serde_json::to_vec(&snapshot.attributes))?)?;
        }
        if !snapshot.omitted.is_empty() {
            put(&mut out, "omitted-total", &snapshot.omitted_total.to_string())?;
            let listed = json(serde_json::to_vec(&snapshot.omitted))?;
            if listed.len() <= MOST_OMITTED {
                put(&mut out, "omitted", &listed)?;
            }
        }
        if let Some(repository) = &snapshot.repository {
            put(&mut out, "repository", &json(serde_json::to_vec(repository))?)?;
        }
        Ok(out)
    }

    /// Reads the properties of the snapshot of `dataset` whose name says `id`.
    pub(crate) fn from_properties(properties: &Properties, dataset: &str, id: &SnapshotId) -> Result<Self> {
        let damaged = |what: &str| {
            Error::new(ErrorKind::DataLoss, format!("the snapshot {id} of {dataset} has no {what} that can be read"))
                .with_hint(format!("somebody has changed its properties {PREFIX}…"))
        };
        let text = |name: &str| -> Result<Option<Vec<u8>>> {
            match joined(properties, name) {
                None => Ok(None),
                Some(text) => unescape(&text).map(Some).ok_or_else(|| damaged(name)),
            }
        };
        if text("id")?.as_deref() != Some(id.as_str().as_bytes()) {
            return Err(damaged("id"));
        }
        let rel = text("rel")?.ok_or_else(|| damaged("rel"))?;
        let rel = RelPath::new(rel).map_err(|_| damaged("rel"))?;
        let created = text("created")?.as_deref().and_then(time).ok_or_else(|| damaged("created"))?;
        let label = text("label")?.map(|label| String::from_utf8(label).map_err(|_| damaged("label"))).transpose()?;
        let attributes = match text("attributes")? {
            Some(json) => serde_json::from_slice(&json).map_err(|_| damaged("attributes"))?,
            None => BTreeMap::new(),
        };
        let omitted: Vec<Omission> = match text("omitted")? {
            Some(json) => serde_json::from_slice(&json).map_err(|_| damaged("omitted"))?,
            None => Vec::new(),
        };
        let total = text("omitted-total")?.and_then(|total| String::from_utf8(total).ok()?.parse().ok());
        let repository = match text("repository")? {
            Some(json) => Some(serde_json::from_slice(&json).map_err(|_| damaged("repository"))?),
            None => None,
        };
        let snapshot = Snapshot {
            id: id.clone(),
            reference: Reference::new(id.as_str())?,
            created,
            label,
            attributes,
            durability: Durability::Durable,
            tree: None,
            entries: None,
            omitted_total: total.unwrap_or(omitted.len() as u64),
            omitted,
            repository,
            pins: pins(dataset, &rel),
            changed_below: None,
        };
        Ok(Self { snapshot, rel })
    }
}

/// A snapshot is of the whole dataset.
fn pins(dataset: &str, rel: &RelPath) -> Option<String> {
    (!rel.is_root()).then(|| format!("the dataset {dataset}"))
}

fn put(out: &mut Vec<(CString, CString)>, name: &str, value: &str) -> Result<()> {
    let whole = |text: String| {
        // `escape` leaves no control characters in values, and names are from here.
        CString::new(text).map_err(|_| Error::new(ErrorKind::InvalidArgument, "a property's value with a NUL in it"))
    };
    let mut rest = value;
    for i in 0.. {
        let mut end = rest.len().min(PIECE);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, after) = rest.split_at(end);
        let name = if i == 0 { format!("{PREFIX}{name}") } else { format!("{PREFIX}{name}.{i}") };
        out.push((whole(name)?, whole(piece.to_owned())?));
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    Ok(())
}

fn joined(properties: &Properties, name: &str) -> Option<Vec<u8>> {
    let mut text = properties.get(format!("{PREFIX}{name}").as_bytes())?.clone();
    for i in 1.. {
        match properties.get(format!("{PREFIX}{name}.{i}").as_bytes()) {
            Some(piece) => text.extend_from_slice(piece),
            None => break,
        }
    }
    Some(text)
}

fn time(text: &[u8]) -> Option<Timestamp> {
    let (secs, nanos) = std::str::from_utf8(text).ok()?.split_once('.')?;
    let nanos = nanos.parse().ok().filter(|_| nanos.len() == 9)?;
    Some(Timestamp { secs: secs.parse().ok()?, nanos })
}

#[cfg(test)]
mod tests {
    use ah_plugin_api::{CapturePolicy, OmitReason};

    use super::*;

    fn request(label: Option<&str>) -> SnapshotRequest {
        SnapshotRequest {
            id: SnapshotId::new("a-1").unwrap(),
            created: Timestamp { secs: -5, nanos: 1 },
            label: label.map(ToOwned::to_owned),
            attributes: BTreeMap::new(),
            durability: Durability::Instant,
            policy: CapturePolicy::default(),
        }
    }

    fn there_and_back(record: &Record) -> (Record, Properties) {
        let key = Key::parse("0123456789abcdef").unwrap();
        let list = record.to_properties(&key).unwrap();
        let properties: Properties =
            list.into_iter().map(|(name, value)| (name.into_bytes(), value.into_bytes())).collect();
        for (name, value) in &properties {
            assert!(name.len() <= 255 && value.len() <= 8191);
            assert!(name.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b":-.".contains(b)));
        }
        (Record::from_properties(&properties, "tank/ws", &record.snapshot.id).unwrap(), properties)
    }

    #[test]
    fn everything_comes_back() {
        let long = "\u{1f980}\n".repeat(4096);
        for label in [None, Some(""), Some("label"), Some("two\nlines % \u{0} \u{e9}"), Some(long.as_str())] {
            let mut request = request(label);
            request.attributes = BTreeMap::from([("".into(), "x\0".into()), ("k".repeat(9000), "v".repeat(9000))]);
            let omitted = vec![Omission {
                path: RelPath::new(b"caf\xe9".as_slice()).unwrap(),
                reason: OmitReason::OtherFilesystem,
                detail: None,
            }];
            let rel = RelPath::new(b"a b/\xff\n".as_slice()).unwrap();
            let record = Record::new(&request, "tank/ws", rel, omitted).unwrap();
            assert_eq!(record.snapshot.pins.as_deref(), Some("the dataset tank/ws"));
            assert_eq!(there_and_back(&record).0, record);
        }
    }

    #[test]
    fn what_is_missing_or_changed_is_damage() {
        let record = Record::new(&request(None), "tank/ws", RelPath::root(), Vec::new()).unwrap();
        assert_eq!(record.snapshot.pins, None);
        let (_, properties) = there_and_back(&record);
        for name in ["id", "rel", "created"] {
            let mut less = properties.clone();
            less.remove(format!("{PREFIX}{name}").as_bytes()).unwrap();
            let error = Record::from_properties(&less, "tank/ws", &record.snapshot.id).unwrap_err();
            assert_eq!(error.kind, ErrorKind::DataLoss);
            less.insert(format!("{PREFIX}{name}").into_bytes(), b"%zz".to_vec());
            assert!(Record::from_properties(&less, "tank/ws", &record.snapshot.id).is_err());
        }
    }

    #[test]
    fn too_many_omissions_are_counted() {
        let omitted: Vec<_> = (0..3000)
            .map(|i| Omission {
                path: RelPath::new(format!("dir/{i:040}")).unwrap(),
                reason: OmitReason::OtherFilesystem,
                detail: None,
            })
            .collect();
        let record = Record::new(&request(None), "tank/ws", RelPath::root(), omitted).unwrap();
        let (back, _) = there_and_back(&record);
        assert_eq!((back.snapshot.omitted.len(), back.snapshot.omitted_total), (0, 3000));
    }
}
