//! Places of a table that other processes read.

/// The taken and the free places of a table in this process's segment.
#[derive(Default)]
pub(super) struct TablePlaces {
    /// The places from here on have never been taken.
    first_never_used: usize,
    free_places: Vec<usize>,
}

impl TablePlaces {
    pub(super) fn take_free_place(&mut self, limit: usize) -> Option<usize> {
        self.free_places.pop().or_else(|| {
            let place = self.first_never_used;
            (place < limit).then(|| {
                self.first_never_used += 1;
                place
            })
        })
    }

    pub(super) fn give_back(&mut self, place: usize) {
        self.free_places.push(place);
    }
}
