//! The keys that there are, and what may stand in them.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::prune::Policy;
use crate::refs::parse_duration;
use crate::snapshot::MAX_LABEL;

/// A key that there is.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ConfigKey {
    /// Its name.
    pub name: &'static str,
    /// What it is for, one sentence.
    pub help: &'static str,
    /// Whether an untrusted project may set it: labels, includes, excludes and caps only.
    pub project: bool,
    #[serde(skip)]
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    Texts,
    Folders,
    Labels,
    Size,
    Count,
    Switch,
    Duration,
    OneOf(&'static [&'static str]),
    Policy,
    RecordingPolicy,
    Share,
}

/// A part of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    Bytes(u64),
    Percent(u64),
}

impl Share {
    /// How many bytes that is of a disk of `total` bytes.
    pub(crate) fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => u64::try_from(u128::from(total) * u128::from(percent) / 100).unwrap_or(u64::MAX),
        }
    }
}

const fn key(name: &'static str, project: bool, kind: Kind, help: &'static str) -> ConfigKey {
    ConfigKey { name, help, project, kind }
}

/// All keys, by name.
pub(crate) const KEYS: &[ConfigKey] = &[
    key(
        "agent.may-remove",
        false,
        Kind::Switch,
        "whether `rm`, `prune`, `hooks uninstall`, and what loosens retention or trust are done inside an agent's own session",
    ),
    key(
        "branch.carry",
        false,
        Kind::OneOf(&["auto", "none"]),
        "whether ignored files that work needs come along into a branch",
    ),
    key("branch.carry-limit", true, Kind::Size, "copy at most so much into a branch where files cannot be shared"),
    key("capture.exclude", true, Kind::Texts, "patterns (as in .gitignore) of what is left out"),
    key(
        "capture.include",
        true,
        Kind::Texts,
        "patterns (as in .gitignore) of ignored files that are captured all the same",
    ),
    key("capture.max-entries", true, Kind::Count, "refuse to capture more files and directories than this"),
    key("capture.max-file-size", true, Kind::Size, "larger files are left out"),
    key(
        "capture.max-ignored-size",
        true,
        Kind::Size,
        "ignored files outside ignored directories are captured up to this size",
    ),
    key("labels", true, Kind::Labels, "attributes that are put on every snapshot"),
    key(
        "mode",
        false,
        Kind::OneOf(&["auto", "in-place", "worktree", "cow-overlay"]),
        "how a workspace is given to an agent",
    ),
    key("moments.interval", true, Kind::Duration, "after an automatic snapshot, moments of so long have none"),
    key("moments.limit", true, Kind::Count, "a session has no more automatic snapshots than this"),
    key(
        "moments.window",
        true,
        Kind::Duration,
        "after an automatic snapshot, moments of so long share the next one, unless the agent goes on before",
    ),
    key("provider", false, Kind::Text, "the provider that takes snapshots, whatever its rank"),
    key("provider-path", false, Kind::Folders, "folders in which plugins are looked for first"),
    key(
        "prune.max-size",
        false,
        Kind::Share,
        "what all stores may take together (a size, or like \"5%\" of the disk); without it 10 GiB or 5 %, whichever is less",
    ),
    key(
        "prune.min-free",
        false,
        Kind::Share,
        "automatic snapshots are paused when less than this is free (a size, or like \"10%\" of the disk)",
    ),
    key(
        "prune.policy",
        false,
        Kind::Policy,
        "the retention policy: hourly behind snapshots, and of `prune` without one",
    ),
    key("prune.recordings", false, Kind::RecordingPolicy, "as `prune.policy`, of recordings"),
];

impl ConfigKey {
    /// The key of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// All keys there are, by name.
    #[must_use]
    pub fn all() -> &'static [Self] {
        KEYS
    }

    /// Whether its value is an object, so that what is below it are no keys.
    pub(crate) fn is_object(&self) -> bool {
        matches!(self.kind, Kind::Labels)
    }

    /// What a command line's text means for it, where that is not JSON for it: a list is split at commas.
    pub(crate) fn value_of(&self, text: &str) -> Value {
        if let Ok(value) = serde_json::from_str::<Value>(text)
            && self.check(&value).is_ok()
        {
            return value;
        }
        match self.kind {
            Kind::Texts | Kind::Folders => text.split(',').filter(|part| !part.is_empty()).map(Value::from).collect(),
            _ => Value::from(text),
        }
    }

    /// Whether somebody who sets it to a number means a size, and has not said in what; a file may have it in bytes.
    pub(crate) fn lacks_unit(&self, value: &Value) -> bool {
        matches!(self.kind, Kind::Size | Kind::Share) && value.as_u64().is_some_and(|bytes| bytes > 0)
    }

    /// Whether a number that lacks its unit may have been meant in percent.
    pub(crate) fn may_be_share(&self, number: &Value) -> bool {
        matches!(self.kind, Kind::Share) && number.as_u64().is_some_and(|percent| percent <= 100)
    }

    /// Whether a value may stand there; the error says what may.
    pub(crate) fn check(&self, value: &Value) -> Result<(), String> {
        let texts = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
        let (ok, wanted) = match self.kind {
            Kind::Text => (value.is_string(), "text".to_owned()),
            Kind::Texts => (texts(value), "a list of texts".to_owned()),
            // A relative one would mean another folder in each directory that `ah` is used in.
            Kind::Folders => (
                texts(value) && value.as_array().into_iter().flatten().all(|one| one.as_str().is_some_and(is_absolute)),
                "a list of absolute paths".to_owned(),
            ),
            // Each snapshot bears them, on a timeline that only grows.
            Kind::Labels => (
                value.as_object().is_some_and(|map| {
                    let bytes =
                        map.iter().map(|(name, text)| Some(name.len() + text.as_str()?.len())).sum::<Option<usize>>();
                    bytes.is_some_and(|bytes| bytes <= MAX_LABEL)
                }),
                format!("an object of texts, of {MAX_LABEL} bytes at most"),
            ),
            Kind::Size => (size(value).is_some(), "a size (a number of bytes, or like \"256MiB\")".to_owned()),
            Kind::Count => (value.is_u64(), "a number".to_owned()),
            Kind::Switch => (value.is_boolean(), "true or false".to_owned()),
            Kind::Duration => (
                value.as_str().and_then(duration).is_some(),
                "a time of up to a day, like \"300ms\" or \"5s\"; \"0s\" for none".to_owned(),
            ),
            Kind::OneOf(those) => {
                (value.as_str().is_some_and(|text| those.contains(&text)), format!("one of {}", those.join(", ")))
            }
            Kind::Share => (
                share(value).is_some(),
                "a size (a number of bytes, or like \"256MiB\") or a part of the disk, like \"5%\"".to_owned(),
            ),
            Kind::RecordingPolicy => match value.as_str().map(Policy::parse_for_recordings) {
                Some(Ok(_)) => (true, String::new()),
                Some(Err(error)) => return Err(error.message),
                None => (false, "a retention policy".to_owned()),
            },
            Kind::Policy => match value.as_str().map(Policy::parse) {
                Some(Ok(_)) => (true, String::new()),
                Some(Err(error)) => return Err(error.message),
                None => (false, "a retention policy".to_owned()),
            },
        };
        if ok { Ok(()) } else { Err(format!("it must be {wanted}")) }
    }
}

fn is_absolute(path: &str) -> bool {
    std::path::Path::new(path).is_absolute()
}

/// A span of time, bounded so that nothing ever waits for longer.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    const DAY: i128 = 86_400_000_000_000;
    let nanos = parse_duration(text).filter(|nanos| (0..=DAY).contains(nanos))?;
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

/// A size in bytes: a number, or text as [`parse_size`] reads it.
pub(crate) fn size(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| parse_size(value.as_str()?))
}

/// A size, or a whole number of percent.
pub(crate) fn share(value: &Value) -> Option<Share> {
    let percent = value.as_str().and_then(|text| text.trim().strip_suffix('%'));
    match percent {
        Some(percent) => percent.trim_end().parse().ok().filter(|percent| *percent <= 100).map(Share::Percent),
        None => size(value).map(Share::Bytes),
    }
}

/// `0`, `1000B`, `64K`, `64KiB`, `64kB`, `1.5G`: with or without `i` and, but for bytes, `B`; steps of 1024.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let shift = match unit.strip_suffix('i').unwrap_or(unit) {
        // Whoever writes 5 hardly means five bytes.
        "" if digits == text.len() && number != "0" => return None,
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let (whole, part) = number.split_once('.')?;
    if part.is_empty() || part.len() > 6 || !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part = part.parse::<u64>().ok()?.checked_mul(1 << shift)? / 10u64.pow(u32::try_from(part.len()).ok()?);
    whole.checked_mul(1 << shift)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::{ConfigKey, KEYS, Share, parse_size, share};
    use serde_json::json;

    #[test]
    fn sizes_are_read() {
        for (text, size) in
            [("0", 0), ("5B", 5), ("7 b", 7), ("64k", 65536), ("1MiB", 1 << 20), ("1.5 GB", 3 << 29), (".5K", 512)]
        {
            assert_eq!(parse_size(text), Some(size), "{text}");
        }
        for text in ["", "5", "1.5", "1000000", "x", "-1", "1x", "1.", "99999999999999999999", "99999999T", "1.2.3"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn values_are_checked() {
        let key = |name| ConfigKey::find(name).unwrap();
        assert!(key("mode").check(&json!("auto")).is_ok() && key("mode").check(&json!("fast")).is_err());
        assert!(
            key("capture.exclude").check(&json!(["a"])).is_ok() && key("capture.exclude").check(&json!("a")).is_err()
        );
        assert_eq!(key("capture.exclude").value_of("a,b"), json!(["a", "b"]));
        assert_eq!(key("capture.max-entries").value_of("5"), json!(5));
        assert_eq!(key("provider").value_of("git"), json!("git"));
        assert_eq!(key("provider-path").value_of("/a,/b"), json!(["/a", "/b"]));
        assert!(key("provider-path").check(&json!(["/a", "lib/ah"])).is_err());
        assert!(key("prune.policy").check(&json!("keep-last=x")).is_err());
        let window = key("moments.window");
        assert_eq!(window.value_of("1s"), json!("1s"));
        assert!(window.check(&json!("300ms")).is_ok() && window.check(&json!("0s")).is_ok());
        assert!(window.check(&json!("2d")).is_err() && window.check(&json!(300)).is_err());
        assert_eq!(key("agent.may-remove").value_of("true"), json!(true));
        assert!(key("agent.may-remove").check(&json!("yes")).is_err());
        assert!(KEYS.is_sorted_by_key(|key| key.name));
    }

    #[test]
    fn parts_of_a_disk_are_read() {
        assert_eq!(share(&json!("5%")), Some(Share::Percent(5)));
        assert_eq!(share(&json!("2G")), Some(Share::Bytes(2 << 30)));
        assert_eq!(share(&json!(7)), Some(Share::Bytes(7)));
        for bad in ["101%", "-1%", "%", "x%", "1.5%", ""] {
            assert_eq!(share(&json!(bad)), None, "{bad}");
        }
        assert_eq!((Share::Percent(5).of(u64::MAX), Share::Percent(0).of(9)), (u64::MAX / 20, 0));
    }

    #[test]
    fn no_key_that_runs_or_loads_something_is_a_projects() {
        for name in [
            "agent.may-remove",
            "provider",
            "provider-path",
            "mode",
            "prune.max-size",
            "prune.min-free",
            "prune.policy",
            "prune.recordings",
        ] {
            assert!(!ConfigKey::find(name).unwrap().project);
        }
    }
}
