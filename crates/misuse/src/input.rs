//! Conversion of any bytes into a sequence of decisions.

/// The remaining bytes. After their end every decision is 0.
pub(crate) struct DecisionBytes<'a>(&'a [u8]);

impl<'a> DecisionBytes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn next_byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    pub(crate) fn next_u16(&mut self) -> u16 {
        u16::from_le_bytes([self.next_byte(), self.next_byte()])
    }

    pub(crate) fn next_u32(&mut self) -> u32 {
        u32::from_le_bytes([
            self.next_byte(),
            self.next_byte(),
            self.next_byte(),
            self.next_byte(),
        ])
    }

    /// Returns a number below `count`, which is not 0.
    pub(crate) fn index_below(&mut self, count: usize) -> usize {
        usize::from(self.next_byte()) % count
    }

    /// Returns true for one of `times` values of the next byte.
    pub(crate) fn one_in(&mut self, times: u8) -> bool {
        self.next_byte() % times == times - 1
    }

    /// Returns a value that is mostly below `sensible`, and sometimes any number.
    pub(crate) fn mostly_below(&mut self, sensible: u32) -> u32 {
        match self.next_byte() {
            0xfd => self.next_u32(),
            0xfe => u32::MAX,
            0xff => 0,
            byte => u32::from(byte) % sensible.max(1),
        }
    }
}
