//! Retention policies as text: `keep-last=50,keep-within=7d,max-size=5G`.

use std::fmt;

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::config::parse_size;
use crate::refs::parse_duration;

/// What stays. A snapshot stays if any of the rules says so; `max-size` then takes the oldest of those that nothing protects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Policy {
    /// The latest so many.
    pub(crate) last: Option<u64>,
    /// Those of the last so many nanoseconds.
    pub(crate) within: Option<i128>,
    /// The latest of each of the last so many hours that have one.
    pub(crate) hourly: Option<u64>,
    /// … days, in UTC.
    pub(crate) daily: Option<u64>,
    /// … weeks.
    pub(crate) weekly: Option<u64>,
    /// Those with a label.
    pub(crate) labelled: bool,
    /// Those taken by hand.
    pub(crate) manual: bool,
    /// No more bytes than this.
    pub(crate) max_size: Option<u64>,
    text: String,
}

impl Policy {
    /// Reads a policy.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bad = |rule: &str, why: &str| {
            Error::new(ErrorKind::InvalidArgument, format!("{rule:?} is not a rule of a retention policy: {why}")).with_hint(
                "rules: keep-last=N, keep-within=7d, keep-hourly=N, keep-daily=N, keep-weekly=N, keep-labelled, keep-manual, max-size=5G",
            )
        };
        let mut policy = Self { text: String::new(), ..Self::default() };
        let mut rules = Vec::new();
        for rule in text.split(',').map(str::trim).filter(|rule| !rule.is_empty()) {
            let (name, value) =
                rule.split_once('=').map_or((rule, None), |(name, value)| (name.trim(), Some(value.trim())));
            let number =
                || value.and_then(|value| value.parse::<u64>().ok()).ok_or_else(|| bad(rule, "it needs a number"));
            let twice = match name {
                "keep-last" => policy.last.replace(number()?).is_some(),
                "keep-hourly" => policy.hourly.replace(number()?).is_some(),
                "keep-daily" => policy.daily.replace(number()?).is_some(),
                "keep-weekly" => policy.weekly.replace(number()?).is_some(),
                "keep-within" => {
                    let time =
                        value.and_then(parse_duration).ok_or_else(|| bad(rule, "it needs a time like 7d or 12h"))?;
                    policy.within.replace(time).is_some()
                }
                "max-size" => {
                    let size = value.and_then(parse_size).ok_or_else(|| bad(rule, "it needs a size like 5G"))?;
                    policy.max_size.replace(size).is_some()
                }
                "keep-labelled" if value.is_none() => std::mem::replace(&mut policy.labelled, true),
                "keep-manual" if value.is_none() => std::mem::replace(&mut policy.manual, true),
                "keep-labelled" | "keep-manual" => return Err(bad(rule, "it takes no value")),
                _ => return Err(bad(rule, "it is not known")),
            };
            if twice {
                return Err(bad(rule, "it is there twice"));
            }
            rules.push(value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}")));
        }
        if rules.is_empty() {
            return Err(bad(text, "there is none"));
        }
        policy.text = rules.join(",");
        Ok(policy)
    }

    /// Whether any rule keeps something; without one, only `max-size` removes.
    pub(crate) fn keeps_by_rule(&self) -> bool {
        self.last.is_some()
            || self.within.is_some()
            || self.hourly.is_some()
            || self.daily.is_some()
            || self.weekly.is_some()
            || self.labelled
            || self.manual
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::Policy;
    use proptest::prelude::{any, proptest};

    #[test]
    fn policies_are_read() {
        let policy = Policy::parse(" keep-last=50, keep-within = 7d,max-size=5G,keep-labelled ").unwrap();
        assert_eq!((policy.last, policy.max_size, policy.labelled), (Some(50), Some(5 << 30), true));
        assert_eq!(policy.within, Some(7 * 86_400 * 1_000_000_000));
        assert_eq!(policy.to_string(), "keep-last=50,keep-within=7d,max-size=5G,keep-labelled");
        assert_eq!(Policy::parse(&policy.to_string()).unwrap(), policy);
        for bad in [
            "",
            ",",
            "keep-last",
            "keep-last=x",
            "keep-last=-1",
            "keep-all=1",
            "keep-last=1,keep-last=2",
            "keep-manual=1",
            "max-size=1d",
        ] {
            assert!(Policy::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_no_panic(text in any::<String>()) {
            let _ = Policy::parse(&text);
        }
    }
}
