//! The entry points of each enabled provider. The tap's functions are over them if the verbs of this process are
//! counted or traced.

#[cfg(any(feature = "tap", feature = "simnic"))]
use std::sync::OnceLock;

use verbs_abi::Symbols;

/// Returns the entry points of the software NIC.
#[cfg(feature = "softnic")]
pub(super) fn softnic() -> &'static Symbols {
    #[cfg(feature = "tap")]
    if tap::is_counting_or_tracing() {
        static TAPPED: OnceLock<Symbols> = OnceLock::new();
        return TAPPED.get_or_init(|| {
            softnic::register_fault_observer(tap::trace::append_event_line);
            tap::symbols::<SoftNicTapProvider>()
        });
    }
    softnic::symbols()
}

/// Returns the entry points of the machine's libibverbs.
#[cfg(feature = "system")]
pub(super) fn system() -> Result<&'static Symbols, libibverbs::LoadError> {
    let own = libibverbs::loaded_symbols()?;
    #[cfg(feature = "tap")]
    if tap::is_counting_or_tracing() {
        static TAPPED: OnceLock<Symbols> = OnceLock::new();
        return Ok(TAPPED.get_or_init(tap::symbols::<libibverbs::System>));
    }
    Ok(own)
}

/// Returns the entry points of the simulated NICs. The tap does not count them: `simnic::Cluster` has their counters.
#[cfg(feature = "simnic")]
pub(super) fn simnic() -> &'static Symbols {
    static SYMBOLS: OnceLock<Symbols> = OnceLock::new();
    SYMBOLS.get_or_init(simnic::provider_symbols)
}

/// The software NIC as a provider of the tap.
#[cfg(all(feature = "softnic", feature = "tap"))]
struct SoftNicTapProvider;

#[cfg(all(feature = "softnic", feature = "tap"))]
impl tap::Provider for SoftNicTapProvider {
    const NAME: &'static str = "softnic";
    const QPN_PROCESS_SHIFT: Option<u32> = Some(softnic::QPN_TO_PROCESS_SLOT_SHIFT);

    fn symbols() -> &'static Symbols {
        softnic::symbols()
    }

    fn later_symbols() -> Option<&'static verbs_abi::LaterSymbols> {
        Some(softnic::later_symbols())
    }
}
