//! The processor times of a host on which several cores are active.

use std::borrow::Cow;

use super::{Host, Profile, Sourced};

impl Profile {
    /// Returns the profile with the processor times of a host on which so many cores are active.
    ///
    /// Times of instructions grow as the clock rate of the cores falls. MMIO writes, adds to a line of another core,
    /// and accesses beyond the core's own caches do not: the bus, the caches and the memory have clocks of their own.
    #[must_use]
    pub fn with_active_cores(&self, active_cores: u32) -> Cow<'_, Self> {
        let slowdown = self.slowdown_factor(active_cores);
        if slowdown == 1.0 {
            return Cow::Borrowed(self);
        }
        let mut slower = self.clone();
        slower.host = slower.host.slowed_by(slowdown);
        Cow::Owned(slower)
    }

    /// Factor by which a core of the host is slower with so many active cores than alone: 1 if the profile has no
    /// turbo frequencies.
    #[must_use]
    pub fn slowdown_factor(&self, active_cores: u32) -> f64 {
        self.turbo
            .as_ref()
            .map_or(1.0, |turbo| turbo.slowdown_factor(active_cores))
    }
}

impl Host {
    fn slowed_by(self, slowdown: f64) -> Self {
        let slower = |time: Option<Sourced<f64>>| {
            let time = time?;
            let how = "that of one active core, by turbo.ghz";
            Some(time.derive(time.value * slowdown, how))
        };
        Self {
            post_wqe_ns: slower(self.post_wqe_ns),
            poll_cqe_ns: slower(self.poll_cqe_ns),
            post_recv_ns: slower(self.post_recv_ns),
            atomic_add_ns: slower(self.atomic_add_ns),
            empty_look_ns: slower(self.empty_look_ns),
            request_ns: slower(self.request_ns),
            lookup_ns: slower(self.lookup_ns),
            batched_lookup_ns: slower(self.batched_lookup_ns),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Profile;
    use crate::profile::builtin_profile;

    fn cib() -> &'static Profile {
        builtin_profile("cib").expect("built in")
    }

    #[test]
    fn each_active_core_slows_the_others_down_until_the_last_clock_rate() {
        assert_eq!(cib().slowdown_factor(0), 1.0);
        assert_eq!(cib().slowdown_factor(1), 1.0);
        assert_eq!(cib().slowdown_factor(3), 3.0 / 2.8);
        assert_eq!(cib().slowdown_factor(6), 3.0 / 2.5);
        assert_eq!(cib().slowdown_factor(14), 3.0 / 2.5);
        assert_eq!(
            builtin_profile("cx3").expect("built in").slowdown_factor(8),
            1.0
        );
    }

    #[test]
    fn instructions_take_longer_and_the_bus_does_not() {
        let alone = &cib().host;
        let together = cib().with_active_cores(14);
        let ns =
            |number: &Option<crate::profile::Sourced<f64>>| number.as_ref().expect("known").value;
        assert!((ns(&together.host.request_ns) / ns(&alone.request_ns) - 1.2).abs() < 1e-9);
        assert_eq!(together.host.mmio_write_ns, alone.mmio_write_ns);
        assert_eq!(together.host.contended_add_ns, alone.contended_add_ns);
    }

    #[test]
    fn each_clock_rate_is_a_number_that_can_be_changed() {
        let changed = cib().with_number("turbo.ghz.3", 1.5).expect("a number");
        assert_eq!(changed.slowdown_factor(3), 2.0);
        let numbers = changed.numbers();
        let third = numbers.iter().find(|number| number.key == "turbo.ghz.3");
        assert_eq!(third.map(|number| number.value), Some(1.5));
        assert!(cib().with_number("turbo.ghz.7", 1.5).is_none());
        assert!(cib().with_number("turbo.ghz.0", 1.5).is_none());
    }

    #[test]
    fn clock_rates_that_no_processor_has_are_refused() {
        let with = |rates: &str| {
            let evidence = "source = \"assumed\", why = \"a test\"";
            let text = include_str!("../../profiles/cib.toml");
            let (before, after) = text.split_once("[turbo]").expect("the table");
            let (_, after) = after.split_once("\n\n").expect("the next table");
            let table = format!("[turbo]\nghz = {{ value = {rates}, {evidence} }}\n\n");
            Profile::parse(&format!("{before}{table}{after}"))
        };
        assert!(with("[3.0, 2.5]").is_ok());
        for (rates, message) in [
            ("[]", "at least the clock rate of one active core"),
            ("[3.0, 0.01]", "from 0.1 to 10"),
            ("[3.0, 3.1]", "fewer active cores"),
        ] {
            let err = with(rates).expect_err(rates).to_string();
            assert!(err.contains("turbo.ghz") && err.contains(message), "{err}");
        }
    }
}
