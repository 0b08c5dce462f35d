//! Places of a table that other processes read.

/// Which places of a table of the own segment are taken.
#[derive(Default)]
pub(super) struct Places {
    /// Those from here on never were.
    used: usize,
    free: Vec<usize>,
}

impl Places {
    pub(super) fn take(&mut self, limit: usize) -> Option<usize> {
        self.free.pop().or_else(|| {
            let place = self.used;
            (place < limit).then(|| {
                self.used += 1;
                place
            })
        })
    }

    pub(super) fn give_back(&mut self, place: usize) {
        self.free.push(place);
    }
}
