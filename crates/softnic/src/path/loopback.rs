//! A network in the memory of one process: messages arrive in order, late, or not at all.
//!
//! It is there to run the verbs over a path that is not shared memory, on one machine and by a seed. The
//! environment variable [`PATH_VAR`] asks for it.

use std::collections::VecDeque;

/// The environment variable that chooses how queue pairs reach each other.
pub(crate) const PATH_VAR: &str = "VERBATIM_PATH";

/// What [`PATH_VAR`] asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    /// How long a message is on its way, in nanoseconds.
    delay_ns: u64,
    /// The share of messages that are lost, from 0 to 1.
    loss: f64,
    /// Chooses which messages are lost.
    seed: u64,
}

/// Why a value of [`PATH_VAR`] cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{PATH_VAR} is {0:?}; it is `local`, or `loopback` and, behind a colon and separated by commas, any of \
     delay_us=MICROSECONDS, loss=SHARE (0 to 1) and seed=NUMBER"
)]
pub struct BadPath(String);

impl Settings {
    /// What a value of [`PATH_VAR`] asks for; `None` for shared memory.
    ///
    /// # Errors
    /// Where it is none of the values that the error names.
    pub(crate) fn parse(value: &str) -> Result<Option<Self>, BadPath> {
        let bad = || BadPath(value.to_owned());
        let (kind, options) = value.split_once(':').unwrap_or((value, ""));
        match kind {
            "" | "local" if options.is_empty() => return Ok(None),
            "loopback" => {}
            _ => return Err(bad()),
        }
        let mut settings = Self {
            delay_ns: 0,
            loss: 0.0,
            seed: 1,
        };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (name, number) = option.split_once('=').ok_or_else(bad)?;
            match name {
                "delay_us" => {
                    let delay_us: u32 = number.parse().map_err(|_| bad())?;
                    settings.delay_ns = u64::from(delay_us) * 1000;
                }
                "loss" => {
                    settings.loss = number.parse().map_err(|_| bad())?;
                    if !(0.0..=1.0).contains(&settings.loss) {
                        return Err(bad());
                    }
                }
                "seed" => settings.seed = number.parse().map_err(|_| bad())?,
                _ => return Err(bad()),
            }
        }
        Ok(Some(settings))
    }
}

/// The messages on their way, in the order in which they were sent.
pub(crate) struct Loopback {
    settings: Settings,
    random: u64,
    on_their_way: VecDeque<(u64, Vec<u8>)>,
}

impl Loopback {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            random: settings.seed,
            on_their_way: VecDeque::new(),
        }
    }

    /// Sends a message at the time `now_ns`.
    pub(crate) fn send(&mut self, message: Vec<u8>, now_ns: u64) {
        if !self.loses() {
            let due = now_ns + self.settings.delay_ns;
            self.on_their_way.push_back((due, message));
        }
    }

    /// Whether the next message is lost: by SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    fn loses(&mut self) -> bool {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        #[allow(clippy::cast_precision_loss)] // 53 bits
        let share = (z >> 11) as f64 / (1u64 << 53) as f64;
        share < self.settings.loss
    }

    /// The next message that has arrived at the time `now_ns`.
    pub(crate) fn receive(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        self.on_their_way
            .pop_front_if(|(due, _)| *due <= now_ns)
            .map(|(_, message)| message)
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.on_their_way.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        assert_eq!(Settings::parse("local"), Ok(None));
        let all = Settings::parse("loopback:delay_us=20,loss=0.25,seed=7");
        let wanted = Settings {
            delay_ns: 20_000,
            loss: 0.25,
            seed: 7,
        };
        assert_eq!(all, Ok(Some(wanted)));
        for bad in [
            "wire",
            "local:loss=1",
            "loopback:loss=2",
            "loopback:delay_us",
            "loopback:x=1",
        ] {
            assert_eq!(Settings::parse(bad), Err(BadPath(bad.to_owned())));
        }
    }

    #[test]
    fn messages_arrive_in_order_and_late() {
        let mut network = Loopback::new(Settings {
            delay_ns: 10,
            loss: 0.0,
            seed: 1,
        });
        network.send(vec![1], 0);
        network.send(vec![2], 5);
        assert_eq!(network.receive(9), None);
        assert_eq!(network.receive(10), Some(vec![1]));
        assert_eq!(network.receive(10), None);
        assert_eq!(network.receive(15), Some(vec![2]));
        assert!(network.is_empty());
    }

    #[test]
    fn as_many_are_lost_as_asked_for() {
        let mut network = Loopback::new(Settings {
            delay_ns: 0,
            loss: 0.1,
            seed: 3,
        });
        (0..10_000).for_each(|_| network.send(vec![0], 0));
        let arrived = std::iter::from_fn(|| network.receive(0)).count();
        assert!((8_800..9_200).contains(&arrived), "{arrived}");
    }
}
