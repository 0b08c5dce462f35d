//! Determines the capabilities of a device from its attributes and by creating small objects.

use super::capability_types::{Capabilities, Capability, MaxInlineBytes, MissingCapability};
use super::known_gaps;
use crate::attr::{DeviceAttr, TransportType};
use crate::context::Context;
use crate::cq::CompletionQueue;
use crate::error::VerbError;
use crate::pd::ProtectionDomain;
use crate::qp_builder::probe_granted_inline;
use crate::transport::{Rc, Transport, Uc, Ud};
use crate::types::AtomicCap;

impl Context {
    /// Returns the capabilities of the device. The first call determines them by creating and
    /// destroying small objects: some dozens of queue pairs, most of which the driver refuses at
    /// once. Later calls return the same result.
    ///
    /// ```
    /// use verbs::{Capability, Provider};
    /// let context = Provider::softnic().device(None)?.open()?;
    /// let capabilities = context.capabilities()?;
    /// assert!(capabilities.has(Capability::Uc));
    /// assert!(capabilities.missing_of(&[Capability::Rc, Capability::Atomics]).is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`VerbError`] of a query or of creating an object, for a reason unrelated to the device's capabilities
    /// (`ENOMEM`, `EMFILE` …).
    pub fn capabilities(&self) -> Result<&Capabilities, VerbError> {
        if let Some(known) = self.inner.capabilities.get() {
            return Ok(known);
        }
        let found = probe_device(self)?;
        Ok(self.inner.capabilities.get_or_init(|| found))
    }

    /// Returns the name of the device's kernel driver.
    fn driver_name(&self, attr: &DeviceAttr) -> Option<String> {
        if let Some(link) = self.sysfs_path("device/driver")
            && let Ok(driver) = std::fs::read_link(link)
        {
            return Some(driver.file_name()?.to_string_lossy().into_owned());
        }
        // Soft-RoCE has no device below it. Only this driver names its network device in `parent`,
        // and its vendor ID belongs to no vendor (RXE_VENDOR_ID in the kernel's rxe_param.h).
        (attr.vendor_id == 0xff_ffff && self.read_sysfs("parent").is_some())
            .then(|| "rdma_rxe".to_owned())
    }
}

fn probe_device(context: &Context) -> Result<Capabilities, VerbError> {
    let attr = context.query_device()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
    let (rc_refused, rc) = probe_refusal_and_max_inline::<Rc>(&pd, &cq)?;
    let (uc_refused, uc) = probe_refusal_and_max_inline::<Uc>(&pd, &cq)?;
    let (ud_refused, ud) = probe_refusal_and_max_inline::<Ud>(&pd, &cq)?;
    let driver = context.driver_name(&attr);
    let (max_rd_atomic, max_dest_rd_atomic) = (attr.max_qp_init_rd_atom, attr.max_qp_rd_atom);
    let answers = ProbeResults {
        attr,
        transport_type: context.transport_type(),
        rc_refusal: rc_refused,
        uc_refusal: uc_refused,
        ud_refusal: ud_refused,
        events_refusal: refusal_reason(probe_completion_events(context))?,
    };
    Ok(Capabilities {
        provider_name: context.provider().name(),
        device_name: context.device_name().to_owned(),
        missing_capabilities: [
            answers.missing_capabilities(),
            known_gaps::missing_by_driver(driver.as_deref()),
        ]
        .concat(),
        driver,
        max_inline_bytes: MaxInlineBytes { rc, uc, ud },
        max_rd_atomic,
        max_dest_rd_atomic,
    })
}

/// The device's attributes, and the results of probes.
struct ProbeResults {
    attr: DeviceAttr,
    transport_type: TransportType,
    rc_refusal: Option<String>,
    uc_refusal: Option<String>,
    ud_refusal: Option<String>,
    events_refusal: Option<String>,
}

impl ProbeResults {
    fn missing_capabilities(self) -> Vec<MissingCapability> {
        let attr = self.attr;
        let iwarp = self.transport_type == TransportType::Iwarp;
        let by_cm = "iWARP connects queue pairs by the RDMA connection manager only, which is not used here";
        let no_rc = self.rc_refusal.or_else(|| iwarp.then(|| by_cm.to_owned()));
        let without_rc = no_rc.as_ref().map(|_| "there is no RC".to_owned());
        let no_reads = (attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom) == 0).then(|| {
            format!(
                "ibv_query_device says max_qp_rd_atom {}, max_qp_init_rd_atom {}",
                attr.max_qp_rd_atom, attr.max_qp_init_rd_atom
            )
        });
        let no_atomics = (attr.atomic_cap == AtomicCap::None)
            .then(|| "ibv_query_device says atomic_cap none".to_owned());
        let no_immediates =
            iwarp.then(|| "iWARP messages carry no immediate (RFC 5040)".to_owned());
        let no_srqs = (attr.max_srq == 0).then(|| "ibv_query_device says max_srq 0".to_owned());
        let refusals = [
            (Capability::Rc, no_rc),
            (Capability::Uc, self.uc_refusal),
            (Capability::Ud, self.ud_refusal),
            (
                Capability::RdmaRead,
                without_rc.clone().or(no_reads.clone()),
            ),
            (Capability::Atomics, without_rc.or(no_atomics).or(no_reads)),
            (Capability::Immediates, no_immediates),
            (Capability::SharedReceiveQueues, no_srqs),
            (Capability::CompletionEvents, self.events_refusal),
        ];
        let lack = |(capability, why): (_, Option<String>)| {
            why.map(|why| MissingCapability { capability, why })
        };
        refusals.into_iter().filter_map(lack).collect()
    }
}

/// Returns the reason why the device lacks the transport, if any, and the largest inline payload.
fn probe_refusal_and_max_inline<T: Transport>(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
) -> Result<(Option<String>, u32), VerbError> {
    let without_inline = probe_granted_inline::<T>(pd, cq, 0);
    let Ok(granted) = without_inline else {
        let refused = without_inline.map(drop).map_err(VerbError::from);
        return Ok((refusal_reason(refused)?, 0));
    };
    let most = search_max_inline_bytes(granted, |bytes| {
        probe_granted_inline::<T>(pd, cq, bytes).ok()
    });
    Ok((None, most))
}

/// Returns the largest inline payload, by binary search. `granted` was granted for a request of 0
/// bytes; `ask` returns the payload granted for a request, or `None` for a refusal.
fn search_max_inline_bytes(granted: u32, ask: impl Fn(u32) -> Option<u32>) -> u32 {
    /// No NIC has work queue entries with more inline payload.
    const MAX_INLINE: u32 = 4096;
    let (mut has, mut lacks) = (granted.min(MAX_INLINE), MAX_INLINE + 1);
    while has + 1 < lacks {
        let bytes = has + (lacks - has) / 2;
        match ask(bytes) {
            Some(granted) if granted >= bytes => has = granted.min(lacks - 1),
            _ => lacks = bytes,
        }
    }
    has
}

/// Checks that the device supports completion events.
fn probe_completion_events(context: &Context) -> Result<(), VerbError> {
    let channel = context.create_comp_channel()?;
    let cq = context.create_cq_with_channel(1, &channel)?;
    Ok(cq.req_notify(false)?)
}

/// Returns the reason of a refusal by the device; returns an error if the refusal has another
/// reason.
fn refusal_reason(result: Result<(), VerbError>) -> Result<Option<String>, VerbError> {
    const RESOURCE_ERRNOS: [i32; 8] = [
        libc::ENOMEM,
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOSPC,
        libc::EAGAIN,
        libc::EBUSY,
        libc::EINTR,
        libc::ENODEV,
    ];
    match result {
        Ok(()) => Ok(None),
        Err(e) if RESOURCE_ERRNOS.contains(&e.errno()) => Err(e),
        // Without advice: the device lacks it.
        Err(e) => Ok(Some(format!("{} failed: {}", e.verb(), e.os_error()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "softnic")]
    use crate::Provider;

    #[test]
    fn the_most_inline_payload_is_found_whatever_a_driver_grants() {
        for limit in [0, 1, 28, 60, 220, 828, 4095, 4096, 5000] {
            let exactly = |bytes| (bytes <= limit).then_some(bytes);
            assert_eq!(
                search_max_inline_bytes(0, exactly),
                limit.min(4096),
                "{limit} exactly"
            );
            // As mlx5 does: grant all that fits into the WQE.
            let rounded = |bytes: u32| (bytes <= limit).then_some(bytes.max(limit & !15));
            assert_eq!(
                search_max_inline_bytes(limit & !15, rounded),
                limit.min(4096),
                "{limit}"
            );
            // Contrary to ibv_create_qp(3), but observed: less than requested is granted, without
            // an error.
            let less = |bytes: u32| Some(bytes.min(limit));
            assert_eq!(
                search_max_inline_bytes(0, less),
                limit.min(4096),
                "{limit} silently"
            );
        }
    }

    #[test]
    fn a_shortage_says_nothing_of_the_device() {
        let e = |errno| VerbError::Other {
            verb: "ibv_create_qp",
            source: std::io::Error::from_raw_os_error(errno),
        };
        assert_eq!(refusal_reason(Ok(())).expect("no error"), None);
        assert!(refusal_reason(Err(e(libc::ENOMEM))).is_err());
        let why = refusal_reason(Err(e(libc::EOPNOTSUPP))).expect("it says something");
        assert!(why.is_some_and(|why| why.starts_with("ibv_create_qp failed: ")));
    }

    #[test]
    #[cfg(feature = "softnic")]
    fn the_software_nic_has_everything() {
        let context = Provider::softnic()
            .device(None)
            .expect("a device")
            .open()
            .expect("opens");
        let found = context.capabilities().expect("found out");
        assert_eq!(found.missing_capabilities, []);
        assert!(Capability::ALL.iter().all(|&c| found.has(c)));
        assert_eq!(
            (found.provider_name, found.driver.as_deref()),
            ("softnic", None)
        );
        let MaxInlineBytes { rc, uc, ud } = found.max_inline_bytes;
        assert!(rc > 0 && rc == uc && uc == ud);
        // The reported size is exact to the byte.
        let (pd, cq) = (
            context.alloc_pd().expect("a PD"),
            context.create_cq(1).expect("a CQ"),
        );
        assert!(probe_granted_inline::<Rc>(&pd, &cq, rc).is_ok());
        assert!(probe_granted_inline::<Rc>(&pd, &cq, rc + 1).is_err() || rc == 4096);
    }

    #[test]
    #[cfg(feature = "softnic")]
    fn iwarp_has_neither_our_rc_nor_immediates() {
        let context = Provider::softnic()
            .device(None)
            .expect("a device")
            .open()
            .expect("opens");
        let refused = || Some("ibv_create_qp failed".to_owned());
        let answers = ProbeResults {
            attr: DeviceAttr {
                atomic_cap: AtomicCap::None,
                ..context.query_device().expect("its limits")
            },
            transport_type: TransportType::Iwarp,
            rc_refusal: None,
            uc_refusal: refused(),
            ud_refusal: refused(),
            events_refusal: None,
        };
        let lacks: Vec<_> = answers
            .missing_capabilities()
            .iter()
            .map(|l| l.capability)
            .collect();
        assert_eq!(lacks[..3], [Capability::Rc, Capability::Uc, Capability::Ud]);
        assert_eq!(
            lacks[3..],
            [
                Capability::RdmaRead,
                Capability::Atomics,
                Capability::Immediates
            ]
        );
    }
}
