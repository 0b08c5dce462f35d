//! A child process that ends with its handle.

use std::process::Child;

/// A child process that does not outlive its handle.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
