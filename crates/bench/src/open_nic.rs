//! The NIC that a measurement runs on, its memory and its completions.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use verbs::{
    Access, CompletionQueue, Context, MemoryRegion, PageSize, ProtectionDomain, Provider,
    QpBuilder, Transport,
};

/// Selection of the NIC that a workload runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicChoice {
    /// Provider: `softnic` or `system`.
    pub provider: String,
    /// Device name; `None` selects the provider's first device.
    pub device: Option<String>,
    /// Port number, counted from 1.
    pub port_num: u8,
    /// Index of the source GID in the port's GID table; `None` selects the best one.
    pub gid_index: Option<u8>,
}

impl NicChoice {
    /// Selects the first device of a provider, and its first port.
    #[must_use]
    pub fn first_device_of(provider: &str) -> NicChoice {
        NicChoice {
            provider: provider.to_owned(),
            device: None,
            port_num: 1,
            gid_index: None,
        }
    }

    /// Returns the name of the selected device.
    ///
    /// # Errors
    /// When the provider or the device does not exist. The message lists those that exist.
    pub fn device_name(&self) -> Result<String> {
        let provider = Provider::by_name(&self.provider)?;
        Ok(provider.device(self.device.as_deref())?.name().to_owned())
    }
}

/// Page size of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RegionPageSize {
    /// Pages of 4 KiB.
    Small,
    /// Pages of 2 MiB, which an administrator has to reserve.
    Huge,
}

impl RegionPageSize {
    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RegionPageSize::Small => "small",
            RegionPageSize::Huge => "huge",
        }
    }
}

/// An open device and a protection domain in it.
pub(crate) struct OpenNic {
    pub(crate) context: Context,
    pub(crate) pd: ProtectionDomain,
    port_num: u8,
    gid_index: Option<u8>,
}

impl OpenNic {
    pub(crate) fn open(choice: &NicChoice) -> Result<OpenNic> {
        let provider = Provider::by_name(&choice.provider)?;
        let context = provider.device(choice.device.as_deref())?.open()?;
        Ok(OpenNic {
            port_num: choice.port_num,
            gid_index: choice.gid_index,
            ..OpenNic::open_on_first_port(&context)?
        })
    }

    /// Allocates a protection domain on an open device, for its first port.
    pub(crate) fn open_on_first_port(context: &Context) -> Result<OpenNic> {
        Ok(OpenNic {
            pd: context.alloc_pd()?,
            context: context.clone(),
            port_num: 1,
            gid_index: None,
        })
    }

    /// Returns a builder of a queue pair on the selected port.
    pub(crate) fn qp_builder<T: Transport>(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
    ) -> QpBuilder<T> {
        let qp = self
            .pd
            .qp_builder::<T>(send_cq, recv_cq)
            .port_num(self.port_num);
        match self.gid_index {
            Some(index) => qp.gid_index(index),
            None => qp,
        }
    }

    /// Allocates registered memory, in pages of the given size if any.
    pub(crate) fn alloc_registered_memory(
        &self,
        bytes: usize,
        access: Access,
        pages: Option<RegionPageSize>,
    ) -> Result<MemoryRegion> {
        Ok(match pages {
            None => self.pd.alloc(bytes, access)?,
            Some(RegionPageSize::Small) => {
                self.pd.alloc_in_pages(bytes, access, PageSize::Small)?
            }
            Some(RegionPageSize::Huge) => {
                let memory = self.pd.alloc_in_pages(bytes, access, PageSize::Huge);
                memory.with_context(|| no_huge_pages_message(bytes))?
            }
        })
    }

    pub(crate) fn create_cq(&self, cqe: usize) -> Result<CompletionQueue> {
        Ok(self.context.create_cq(u32::try_from(cqe)?)?)
    }
}

/// Returns a message that says why huge pages are missing, and what to do.
fn no_huge_pages_message(bytes: usize) -> String {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = info
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    format!(
        "cannot have {bytes} bytes in huge pages of 2 MiB, of which the system has {} free; reserve some (as root: \
         sysctl vm.nr_hugepages=64) or take --pages small",
        free.map_or("none", str::trim)
    )
}

/// Converts a small number of bytes or WRs; larger numbers saturate.
pub(crate) fn saturating_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Polls `cq` and passes each successful completion to `on_each`. Returns the number of
/// completions.
///
/// # Errors
/// When a completion has failed, or `on_each` fails.
#[inline]
pub(crate) fn poll_successful_completions<const N: usize>(
    cq: &CompletionQueue,
    buffer: &mut verbs::WcBuffer<N>,
    mut on_each: impl FnMut(verbs::WorkCompletion<'_>) -> Result<()>,
) -> Result<usize> {
    let mut taken = 0;
    for wc in cq.poll(buffer)? {
        match wc {
            Ok(wc) => on_each(wc)?,
            Err(failed) => return Err(anyhow::anyhow!("{failed}")),
        }
        taken += 1;
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_nic_is_refused_with_what_there_is() {
        let choice = |provider: &str, device: Option<&str>| NicChoice {
            device: device.map(str::to_owned),
            ..NicChoice::first_device_of(provider)
        };
        assert!(choice("softnic", None).device_name().is_ok());
        let wrong = choice("softnic", Some("mlx5_0")).device_name().unwrap_err();
        assert!(wrong.to_string().contains("softnic0"), "{wrong}");
        assert!(choice("hardnic", None).device_name().is_err());
    }
}
