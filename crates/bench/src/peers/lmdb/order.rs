//! Orders of an LMDB server.

use serde::{Deserialize, Serialize};

/// What the worker is asked to serve.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Serve {
    /// Keys that there will be at the most.
    pub(super) keys: u64,
}
