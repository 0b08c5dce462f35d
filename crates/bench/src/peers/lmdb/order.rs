//! Job of an LMDB server.

use serde::{Deserialize, Serialize};

/// Parameters of the store that the worker serves.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LmdbServeJob {
    /// Maximum number of keys.
    pub(super) keys: u64,
}
