//! How bytes, times and growing enumerations are written in JSON: in our files and in what the command line prints.
//!
//! - A path is a string where it is UTF-8, else an object `{"bytes": "<lower-case hex>", "text": "<lossy, for people>"}`. Only
//!   `bytes` counts when such an object is read. The workspace's root is `"."`; it reads back from `"."` and `""`.
//! - A time is RFC 3339 in UTC with nanoseconds as far as needed: `2026-03-01T12:00:00.5Z`.
//! - An enumeration is its text; a text that this version does not know reads as `unknown`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

pub use ah_plugin_api::text::{count, hex, shell, size, unhex};
use ah_plugin_api::{RelPath, Result, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha1::{Digest, Sha1};

/// Declares an enumeration that is written as text and may grow.
macro_rules! text_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$vmeta])* $variant,)+
            /// Written by a newer version.
            Unknown,
        }

        impl $name {
            /// The text that stands for the value.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                    Self::Unknown => "unknown",
                }
            }

            /// The value that `text` stands for.
            #[must_use]
            pub fn from_text(text: &str) -> Self {
                match text {
                    $($text => Self::$variant,)+
                    _ => Self::Unknown,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
                Ok(Self::from_text(&<String as serde::Deserialize>::deserialize(deserializer)?))
            }
        }
    };
}
pub(crate) use text_enum;

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Bytes {
    Text(String),
    Hex {
        bytes: String,
        #[serde(default)]
        text: String,
    },
}

impl Bytes {
    fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Hex { bytes: hex(bytes), text: String::from_utf8_lossy(bytes).into_owned() },
        }
    }

    fn into_bytes(self) -> Result<Vec<u8>> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Hex { bytes, .. } => unhex(&bytes),
        }
    }
}

/// A short name of what an agent chose, in hex: no name of ours is made of it as it is.
pub(crate) fn digest(text: &str) -> String {
    hex(&Sha1::digest(text.as_bytes())[..10])
}

/// For `#[serde(with)]` on a [`RelPath`].
pub mod rel {
    use super::{Bytes, Deserialize, Deserializer, RelPath, Result, Serialize, Serializer};

    /// Writes a path.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(path: &RelPath, serializer: S) -> Result<S::Ok, S::Error> {
        if path.is_root() {
            return serializer.serialize_str(".");
        }
        Bytes::of(path.as_bytes()).serialize(serializer)
    }

    /// Reads a path.
    ///
    /// # Errors
    /// The deserializer's, or if it is not a path inside a workspace.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RelPath, D::Error> {
        let bytes = Bytes::deserialize(deserializer)?.into_bytes().map_err(serde::de::Error::custom)?;
        if bytes == b"." {
            return Ok(RelPath::root());
        }
        RelPath::new(bytes).map_err(serde::de::Error::custom)
    }
}

/// For `#[serde(with)]` on a `Vec<RelPath>`.
pub mod rels {
    use super::{Deserialize, Deserializer, RelPath, Result, Serialize, Serializer, rel};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct One(#[serde(with = "rel")] RelPath);

    /// Writes paths.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(paths: &[RelPath], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| One(path.clone())))
    }

    /// Reads paths.
    ///
    /// # Errors
    /// The deserializer's, or if one is not a path inside a workspace.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RelPath>, D::Error> {
        Ok(Vec::<One>::deserialize(deserializer)?.into_iter().map(|one| one.0).collect())
    }
}

/// For `#[serde(with)]` on an absolute path.
pub mod abs {
    use super::{
        Bytes, Deserialize, Deserializer, OsStrExt, OsString, OsStringExt, PathBuf, Result, Serialize, Serializer,
    };

    /// Writes a path.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(path: &std::path::Path, serializer: S) -> Result<S::Ok, S::Error> {
        Bytes::of(path.as_os_str().as_bytes()).serialize(serializer)
    }

    /// Reads a path.
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        let bytes = Bytes::deserialize(deserializer)?.into_bytes().map_err(serde::de::Error::custom)?;
        Ok(PathBuf::from(OsString::from_vec(bytes)))
    }
}

/// For `#[serde(with)]` on an `Option<PathBuf>`.
pub mod abs_option {
    use super::{Deserialize, Deserializer, PathBuf, Result, Serialize, Serializer, abs};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct One(#[serde(with = "abs")] PathBuf);

    /// Writes a path, if there is one.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        path.clone().map(One).serialize(serializer)
    }

    /// Reads a path, if there is one.
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<One>::deserialize(deserializer)?.map(|one| one.0))
    }
}

/// For `#[serde(with)]` on a [`Timestamp`].
pub mod time {
    use super::{Deserialize, Deserializer, Result, Serializer, Timestamp, format_time, parse_time};

    /// Writes a time.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_time(*time))
    }

    /// Reads a time.
    ///
    /// # Errors
    /// The deserializer's, or if it is not RFC 3339.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_time(&text).ok_or_else(|| serde::de::Error::custom("this is not a time in RFC 3339"))
    }
}

/// For `#[serde(with)]` on the words of a command.
pub mod words {
    use super::{Bytes, Deserialize, Deserializer, OsStrExt, OsString, OsStringExt, Result, Serializer};

    /// Writes words.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(words: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(words.iter().map(|word| Bytes::of(word.as_bytes())))
    }

    /// Reads words.
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<OsString>, D::Error> {
        let words = Vec::<Bytes>::deserialize(deserializer)?.into_iter();
        words.map(|word| word.into_bytes().map(OsString::from_vec).map_err(serde::de::Error::custom)).collect()
    }
}

/// RFC 3339 in UTC. A time that no calendar has (a filesystem may keep such a one) shows as the nearest that has one.
#[must_use]
pub fn format_time(time: Timestamp) -> String {
    let nanos = i32::try_from(time.nanos).unwrap_or(0);
    let nearest = if time.secs < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
    jiff::Timestamp::new(time.secs, nanos).unwrap_or(nearest).to_string()
}

/// Reads RFC 3339, with an offset.
#[must_use]
pub fn parse_time(text: &str) -> Option<Timestamp> {
    let time: jiff::Timestamp = text.parse().ok()?;
    let (mut secs, mut nanos) = (time.as_second(), time.subsec_nanosecond());
    if nanos < 0 {
        secs -= 1;
        nanos += 1_000_000_000;
    }
    Some(Timestamp { secs, nanos: u32::try_from(nanos).unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::{Timestamp, format_time, parse_time, rel};
    use ah_plugin_api::RelPath;
    use proptest::prelude::{any, proptest};
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "rel")]
        path: RelPath,
    }

    #[test]
    fn paths_that_are_not_utf8_come_back() {
        for bytes in [&b"a/b"[..], b"", b"a/\xff\x00b".split(|&b| b == 0).next().unwrap(), "ä".as_bytes()] {
            let holder = Holder { path: RelPath::new(bytes).unwrap() };
            let text = serde_json::to_string(&holder).unwrap();
            assert_eq!(serde_json::from_str::<Holder>(&text).unwrap(), holder, "{text}");
        }
        let text = serde_json::to_string(&Holder { path: RelPath::new(b"a\xff".to_vec()).unwrap() }).unwrap();
        assert_eq!(text, "{\"path\":{\"bytes\":\"61ff\",\"text\":\"a\u{fffd}\"}}");
        assert!(serde_json::from_str::<Holder>("{\"path\":\"../x\"}").is_err());
    }

    #[test]
    fn odd_times_are_shown_without_panic() {
        for secs in [i64::MIN, -1, 0, i64::MAX] {
            assert!(!format_time(Timestamp { secs, nanos: 999_999_999 }).is_empty());
        }
        assert_eq!(format_time(Timestamp { secs: -1, nanos: 500_000_000 }), "1969-12-31T23:59:59.5Z");
    }

    proptest! {
        #[test]
        fn times_come_back(secs in -62_000_000_000i64..250_000_000_000, nanos in 0u32..1_000_000_000) {
            let time = Timestamp { secs, nanos };
            assert_eq!(parse_time(&format_time(time)), Some(time));
        }

        #[test]
        fn any_text_is_no_panic(text in any::<String>()) {
            let _ = parse_time(&text);
            let _ = super::unhex(&text);
        }
    }
}
