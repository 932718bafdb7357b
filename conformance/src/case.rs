//! What a case is, and how one fails.

use std::fmt;

use ah_plugin_api::{Capability, Error, ErrorKind};

use crate::fixture::Fixture;

/// One testable part of the contract.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// A name that stays: `group.what`.
    pub id: &'static str,
    /// The words of the contract that it checks, as they stand in the documentation of `ah-plugin-api`.
    pub clauses: &'static [&'static str],
    /// What must be there for the case to mean anything.
    pub needs: &'static [Need],
    /// Checks.
    pub run: fn(&Fixture) -> Check,
}

/// Something a case cannot do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The provider has this capability.
    Has(Capability),
    /// The provider does not have this capability.
    Lacks(Capability),
    /// The suite runs as root, with the right to mount.
    Root,
    /// The suite runs as an ordinary user.
    User,
    /// A `git` program.
    Git,
    /// The provider runs in a process of its own, which can be killed.
    OwnProcess,
    /// Nothing else runs at the same time.
    Quiet,
    /// The provider captures a plain directory where it is: one that can be moved, with all that is kept of it in the store. Others are tested on branches
    /// of their own.
    InPlace,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Has(capability) => write!(f, "needs the capability {capability}"),
            Self::Lacks(capability) => write!(f, "is for providers without the capability {capability}"),
            Self::Root => f.write_str("needs root"),
            Self::User => f.write_str("needs to run as an ordinary user"),
            Self::Git => f.write_str("needs a git program"),
            Self::OwnProcess => f.write_str("needs the provider in a process of its own"),
            Self::Quiet => f.write_str("needs that nothing else runs at the same time"),
            Self::InPlace => f.write_str("is for providers that capture a plain directory where it is"),
        }
    }
}

/// Why a case did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The contract is not kept; what was seen.
    Failed(String),
    /// The machine lacks what the case needs; what.
    Skip(String),
}

/// How a case ends.
pub type Check<T = ()> = Result<T, Trouble>;

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(describe(&error))
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(format!("the suite's own work on the test directory failed: {error}"))
    }
}

/// An error with its kind and causes, on one line.
pub(crate) fn describe(error: &Error) -> String {
    let mut text = format!("{}: {}", error.kind, error.message);
    for cause in &error.causes {
        text.push_str(": ");
        text.push_str(cause);
    }
    text
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::case::Trouble::Failed(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// Fails the case unless the call was refused with one of `kinds`.
pub(crate) fn refused<T>(result: Result<T, Error>, kinds: &[ErrorKind], what: &str) -> Check {
    let wanted = || kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(" or ");
    match result {
        Ok(_) => Err(Trouble::Failed(format!("{what} succeeded instead of answering {}", wanted()))),
        Err(error) if kinds.contains(&error.kind) => Ok(()),
        Err(error) => Err(Trouble::Failed(format!("{what} answered not {} but {}", wanted(), describe(&error)))),
    }
}

/// Fails the case if there is a difference, showing the first ones.
pub(crate) fn same(what: &str, differences: &[String]) -> Check {
    const SHOWN: usize = 6;
    ensure!(
        differences.is_empty(),
        "{what}: {}{}",
        differences[..differences.len().min(SHOWN)].join("; "),
        if differences.len() > SHOWN { format!("; and {} more", differences.len() - SHOWN) } else { String::new() }
    );
    Ok(())
}
