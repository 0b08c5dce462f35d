//! A NIC's profile as seen from its host, and from its DPU.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::sourced::Sourced;
use super::{Dpu, Host, Profile};

/// The cores and memory behind a NIC that use it: those of the host, or those of its DPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CorePlace {
    /// The machine's processor and memory, over PCIe.
    #[default]
    Host,
    /// The DPU's cores and memory.
    Dpu,
}

impl fmt::Display for CorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Dpu => "dpu",
        })
    }
}

impl FromStr for CorePlace {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "host" => Ok(Self::Host),
            "dpu" => Ok(Self::Dpu),
            _ => Err(format!(
                "there is no place {name:?}; there are host and dpu"
            )),
        }
    }
}

impl Dpu {
    /// Describes the DPU's cores as a host.
    fn as_host(&self, host: &Host) -> Host {
        let speed = self.core_speed.value;
        let slower = |time: &Option<Sourced<f64>>| {
            let time = time.as_ref()?;
            let how = "the host's, divided by dpu.core_speed";
            Some(time.derive(time.value / speed, how))
        };
        Host {
            cores: self.cores.clone(),
            clock_ghz: None,
            post_wqe_ns: slower(&host.post_wqe_ns),
            mmio_write_ns: slower(&host.mmio_write_ns),
            poll_cqe_ns: slower(&host.poll_cqe_ns),
            post_recv_ns: slower(&host.post_recv_ns),
            atomic_add_ns: slower(&host.atomic_add_ns),
            contended_add_ns: slower(&host.contended_add_ns),
            empty_look_ns: slower(&host.empty_look_ns),
            request_ns: slower(&host.request_ns),
            lookup_ns: slower(&host.lookup_ns),
            batched_lookup_ns: slower(&host.batched_lookup_ns),
            core_cache_bytes: self.core_cache_bytes.clone(),
            cache_bytes: self.cache_bytes.clone(),
            cache_hit_ns: self.cache_hit_ns.clone(),
            memory_ns: self.memory_ns.clone(),
            outstanding_misses: self.outstanding_misses.clone(),
            written_line_ns: self.written_line_ns.clone(),
        }
    }
}

impl Profile {
    /// Returns the profile of the NIC as seen from this place; `None` for the DPU if the profile has none.
    #[must_use]
    pub fn as_seen_from(&self, place: CorePlace) -> Option<Cow<'_, Self>> {
        match place {
            CorePlace::Host => Some(Cow::Borrowed(self)),
            CorePlace::Dpu => self.as_seen_from_dpu().map(Cow::Owned),
        }
    }

    /// Returns the profile of the same NIC as seen from the DPU's cores. `host` is the DPU, `pcie` is the path to the
    /// DPU's memory, and atomics are in that memory. `None` if the profile has no DPU.
    ///
    /// The wait for WQEs (`processing.wqe_fetch_wait_ns`) becomes a round trip on that path.
    #[must_use]
    pub fn as_seen_from_dpu(&self) -> Option<Self> {
        let dpu = self.dpu.as_ref()?;
        let mut there = self.clone();
        there.dpu = None;
        there.turbo = None;
        there.host = dpu.as_host(&self.host);
        let (pcie, latency) = (&mut there.pcie, &dpu.latency_ns);
        let lane = dpu.bandwidth_mbps.value / f64::from(pcie.lanes.value);
        let how = "dpu.bandwidth_mbps, divided by pcie.lanes";
        pcie.lane_mbps = dpu.bandwidth_mbps.derive(lane, how);
        pcie.read_completion_bytes = dpu.read_completion_bytes.clone();
        pcie.latency_ns = Some(latency.clone());
        if there.processing.wqe_fetch_wait_ns.is_some() {
            let wait = latency.derive(2.0 * latency.value, "twice dpu.latency_ns");
            there.processing.wqe_fetch_wait_ns = Some(wait);
        }
        if let Some(hold) = &dpu.lock_hold_ns {
            there.atomics.lock_hold_ns = Some(hold.clone());
        }
        Some(there)
    }
}

#[cfg(test)]
mod tests {
    use crate::profile::builtin_profile;

    #[test]
    fn a_dpu_sees_the_same_nic_with_its_own_cores_and_memory() {
        assert!(
            builtin_profile("cib")
                .expect("built in")
                .as_seen_from_dpu()
                .is_none()
        );
        let bf2 = builtin_profile("bf2").expect("built in");
        let (there, dpu) = (
            bf2.as_seen_from_dpu().expect("it has one"),
            bf2.dpu.as_ref().expect("a DPU"),
        );
        let number = |profile: &crate::Profile, key: &str| {
            let numbers = profile.numbers();
            let found = numbers.iter().find(|number| number.key == key);
            found.map(|number| number.value)
        };
        for key in ["processing.send_ns", "port.gbps", "wqe.max_inline_bytes"] {
            assert_eq!(number(&there, key), number(bf2, key), "{key}");
        }
        let speed = dpu.core_speed.value;
        for key in ["host.poll_cqe_ns", "host.request_ns", "host.mmio_write_ns"] {
            let host = number(bf2, key).expect(key);
            assert_eq!(number(&there, key), Some(host / speed), "{key}");
        }
        assert_eq!(
            crate::pcie::bandwidth_mbytes_per_s(&there),
            dpu.bandwidth_mbps.value
        );
        assert!(number(&there, "pcie.latency_ns") < number(bf2, "pcie.latency_ns"));
        assert!(number(&there, "atomics.lock_hold_ns") < number(bf2, "atomics.lock_hold_ns"));
        assert!(there.as_seen_from_dpu().is_none());
    }
}
