//! Enumerations that may grow: a value this side does not know reads as `Unknown` instead of failing the message.

/// Declares an enumeration that travels as text, with an `Unknown` variant for what a newer side may send.
macro_rules! open_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:expr,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$vmeta])* $variant,)+
            /// A value that this side does not know.
            Unknown,
        }

        impl $name {
            /// Every value this side knows.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The text that stands for the value in messages and files.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                    Self::Unknown => "unknown",
                }
            }

            /// The value that `text` stands for, [`Self::Unknown`] if none.
            #[must_use]
            pub fn from_text(text: &str) -> Self {
                $(if text == $text {
                    return Self::$variant;
                })+
                Self::Unknown
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Ok(Self::from_text(&text))
            }
        }
    };
}
