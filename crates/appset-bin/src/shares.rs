//! What the calls of one token may hold of a resource that all tokens share: places, or bytes of memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use appset_generator::Failure;
use tokio::sync::Notify;
use tokio::time::timeout;

/// A resource of a limited amount.
pub(crate) struct Shares {
    most: usize,
    /// The failure of a call for which too little is free.
    failure: Failure,
    /// What each token holds.
    held: Mutex<HashMap<String, usize>>,
    freed: Notify,
}

/// What one call holds. It goes back when the value is dropped.
pub(crate) struct Share {
    shares: Arc<Shares>,
    token: String,
    /// Whether there is no other token, which would need a share.
    is_only: bool,
    amount: usize,
}

/// Bytes with the memory that they use, which is free when they are dropped.
pub(crate) struct Held {
    pub(crate) bytes: Vec<u8>,
    pub(crate) memory: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Shares {
    pub(crate) fn new(most: usize, failure: Failure) -> Arc<Self> {
        Arc::new(Self {
            most,
            failure,
            held: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// Returns the empty share of a call with this token, which is the only one or one of several.
    pub(crate) fn share(self: &Arc<Self>, token: &str, is_only: bool) -> Share {
        Share {
            shares: Arc::clone(self),
            token: token.to_owned(),
            is_only,
            amount: 0,
        }
    }

    /// Whether one of several tokens that would hold `own` of `all` stays within its share.
    ///
    /// One token gets at most half. The last quarter is for tokens that hold little, so that a token can hold only a quarter while
    /// others need the rest.
    fn allows(&self, own: usize, all: usize) -> bool {
        // One call must be possible if there is only one place.
        let (half, quarter) = (self.most.div_ceil(2), self.most.div_ceil(4));
        let is_last_quarter = all > self.most.saturating_sub(quarter);
        own <= half && (own <= quarter || !is_last_quarter)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Takes `amount` more, if it is free for the token.
    pub(crate) fn grow(&mut self, amount: usize) -> Result<(), Failure> {
        let mut held = self.shares.lock();
        let own = held.get(&self.token).copied();
        let own = own.unwrap_or_default().saturating_add(amount);
        let all = held.values().sum::<usize>().saturating_add(amount);
        if all > self.shares.most || !(self.is_only || self.shares.allows(own, all)) {
            return Err(self.shares.failure.clone());
        }
        held.insert(self.token.clone(), own);
        self.amount += amount;
        Ok(())
    }

    /// Takes `amount` more, and waits this long until it is free for the token.
    pub(crate) async fn grow_within(
        &mut self,
        amount: usize,
        patience: Duration,
    ) -> Result<(), Failure> {
        let shares = Arc::clone(&self.shares);
        let grown = async {
            loop {
                let freed = shares.freed.notified();
                if self.grow(amount).is_ok() {
                    return;
                }
                freed.await;
            }
        };
        let grown = timeout(patience, grown).await;
        grown.map_err(|_elapsed| shares.failure.clone())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.shares.lock();
        if let Some(own) = held.get_mut(&self.token) {
            *own = own.saturating_sub(self.amount);
            if *own == 0 {
                held.remove(&self.token);
            }
        }
        drop(held);
        self.shares.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes one place after another for the tokens, which are letters, and checks who got one: `-` stands for a refusal.
    #[track_caller]
    fn check(most: usize, tokens: &str, expect: &str) {
        let shares = Shares::new(most, Failure::Busy(most));
        let mut taken = Vec::new();
        let mut got = String::new();
        for token in tokens.chars() {
            let mut share = shares.share(&token.to_string(), false);
            got.push(if share.grow(1).is_ok() { token } else { '-' });
            taken.push(share);
        }
        assert_eq!(got, expect, "{tokens} of {most}");
        drop(taken);
        assert!(shares.lock().is_empty());
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
    fn the_only_token_gets_all() {
        let shares = Shares::new(3, Failure::Busy(3));
        let mut only = shares.share("a", true);
        assert!(only.grow(3).is_ok());
        assert_eq!(only.grow(1), Err(Failure::Busy(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_grows_when_another_goes_back() {
        let shares = Shares::new(100, Failure::Memory(7));
        let mut a = shares.share("a", false);
        assert!(a.grow(10).is_ok() && a.grow(40).is_ok() && a.grow(1).is_err());
        let mut b = shares.share("b", false);
        assert!(b.grow(25).is_ok() && b.grow(usize::MAX).is_err());
        let mut more = shares.share("a", false);
        let patience = Duration::from_secs(1);
        let refused = more.grow_within(50, patience).await;
        assert_eq!(refused, Err(Failure::Memory(7)));
        let (grown, ()) = tokio::join!(more.grow_within(50, patience), async {
            tokio::time::sleep(patience / 2).await;
            drop(a);
        });
        assert_eq!(grown, Ok(()));
    }
}
