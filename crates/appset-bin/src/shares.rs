//! What the calls of one token may hold of a resource that all tokens share: places, or bytes of memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A resource of a limited amount.
pub(crate) struct Shares {
    most: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    all: usize,
    by_token: HashMap<String, usize>,
}

/// What one call holds. It goes back when the value is dropped.
pub(crate) struct Share {
    shares: Arc<Shares>,
    token: String,
    amount: usize,
}

impl Shares {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            held: Mutex::default(),
        })
    }

    /// Returns the largest amount that all tokens hold together.
    pub(crate) const fn most(&self) -> usize {
        self.most
    }

    /// Takes `amount` for a call with this token, if it is free for the token.
    pub(crate) fn take(self: &Arc<Self>, token: &str, amount: usize) -> Option<Share> {
        let mut share = Share {
            shares: Arc::clone(self),
            token: token.to_owned(),
            amount: 0,
        };
        share.grow(amount).then_some(share)
    }

    /// Whether a token that would hold `own` of `all` stays within its share.
    ///
    /// One token gets at most half. The last quarter is for tokens that hold little, so that a token can hold only a quarter while
    /// others need the rest.
    fn allows(&self, own: usize, all: usize) -> bool {
        // One call must be possible if there is only one place.
        let (half, quarter) = (self.most.div_ceil(2), self.most.div_ceil(4));
        let is_last_quarter = all > self.most.saturating_sub(quarter);
        all <= self.most && own <= half && (own <= quarter || !is_last_quarter)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Takes `amount` more. Returns whether it was free for the token.
    pub(crate) fn grow(&mut self, amount: usize) -> bool {
        let mut held = self.shares.lock();
        let own = held.by_token.get(&self.token).copied();
        let own = own.unwrap_or_default().saturating_add(amount);
        let all = held.all.saturating_add(amount);
        let is_free = self.shares.allows(own, all);
        if is_free {
            held.all = all;
            held.by_token.insert(self.token.clone(), own);
            self.amount += amount;
        }
        is_free
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.shares.lock();
        held.all = held.all.saturating_sub(self.amount);
        if let Some(own) = held.by_token.get_mut(&self.token) {
            *own = own.saturating_sub(self.amount);
            if *own == 0 {
                held.by_token.remove(&self.token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes one place after another for the tokens, which are letters, and checks who got one: `-` stands for a refusal.
    #[track_caller]
    fn check(most: usize, tokens: &str, expect: &str) {
        let shares = Shares::new(most);
        let mut taken = Vec::new();
        let mut got = String::new();
        for token in tokens.chars() {
            let share = shares.take(&token.to_string(), 1);
            got.push(if share.is_some() { token } else { '-' });
            taken.extend(share);
        }
        assert_eq!(got, expect, "{tokens} of {most}");
        drop(taken);
        let held = shares.lock();
        assert_eq!((held.all, held.by_token.len()), (0, 0));
    }

    #[test]
    fn one_token_gets_at_most_half_and_the_last_quarter_is_for_others() {
        check(8, "aaaaaa", "aaaa--");
        check(8, "aaaabbbb", "aaaabb--");
        check(8, "aaaabbbbcd", "aaaabb--cd");
        check(8, "aaaabbccd", "aaaabbcc-");
        check(1, "ab", "a-");
        check(2, "aabb", "a-b-");
    }

    #[test]
    fn a_share_grows_and_goes_back_as_a_whole() {
        let shares = Shares::new(100);
        let mut a = shares.take("a", 10).unwrap();
        assert!(a.grow(40) && !a.grow(1));
        assert!(shares.take("a", 1).is_none());
        assert!(shares.take("b", 25).is_some());
        assert!(shares.take("b", usize::MAX).is_none());
        drop(a);
        assert!(shares.take("a", 50).is_some());
    }
}
