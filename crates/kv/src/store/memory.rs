//! Memory of a partition: zeroed, taken from the system as it is touched, in huge pages where there are any.

use memmap2::{Advice, MmapMut};

/// The system has not so much memory.
#[derive(Debug, thiserror::Error)]
#[error("{bytes} bytes of memory for a partition are not to be had: {source}")]
pub struct NoMemory {
    bytes: usize,
    source: std::io::Error,
}

/// So many zeroed bytes, from the start of a page on.
pub(super) fn zeroed(bytes: usize) -> Result<MmapMut, NoMemory> {
    let memory = MmapMut::map_anon(bytes.max(1)).map_err(|source| NoMemory { bytes, source })?;
    // Advice: where there are no huge pages, small ones serve.
    let _ = memory.advise(Advice::HugePage);
    Ok(memory)
}
