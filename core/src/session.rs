//! Sessions and their `session.json`.

use ah_plugin_api::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::SessionName;
use crate::text;

/// A session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Its name.
    pub name: SessionName,
    /// When it began.
    #[serde(with = "text::time")]
    pub created: Timestamp,
}
