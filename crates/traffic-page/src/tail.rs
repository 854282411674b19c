//! The last items of a growing list, for readers that start at any time and know their position.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

/// The last `KEPT` items, and the total number of items.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail<const KEPT: usize> {
    items: VecDeque<Arc<Value>>,
    pushed: usize,
}

impl<const KEPT: usize> Tail<KEPT> {
    pub(crate) fn push(&mut self, item: Value) {
        self.items.push_back(Arc::new(item));
        self.pushed += 1;
        if self.items.len() > KEPT {
            self.items.pop_front();
        }
    }

    /// Returns the items that a reader of the first `read` items lacks, and updates `read`.
    pub(crate) fn unread(&self, read: &mut usize) -> Vec<&Value> {
        let gone = self.pushed - self.items.len();
        let unread = self.items.iter().skip(read.saturating_sub(gone));
        *read = self.pushed;
        unread.map(AsRef::as_ref).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pushed: i32, mut read: usize, expect: &[i32]) {
        let mut tail = Tail::<3>::default();
        for item in 0..pushed {
            tail.push(item.into());
        }
        assert_eq!(tail.unread(&mut read), expect);
        assert_eq!(tail.unread(&mut read), [0; 0]);
    }

    #[test]
    fn a_reader_gets_the_kept_items_that_it_has_not_read() {
        check(0, 0, &[]);
        check(2, 0, &[0, 1]);
        check(2, 1, &[1]);
        check(2, 2, &[]);
        check(9, 0, &[6, 7, 8]);
        check(9, 7, &[7, 8]);
        check(9, 9, &[]);
    }
}
