//! Whether a request is sent again, and when.

use std::time::Duration;

use http::{Method, StatusCode};

/// How often a request is sent at most.
const TRIES: u32 = 3;
/// The shortest pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a try failed, as far as that decides about another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No connection, or it broke before there was an answer.
    Connection,
    /// The API server answered with an error, and may have said how long to wait (`Retry-After`).
    Answered(StatusCode, Option<Duration>),
}

/// The pause before the next try, after so many `tries`. `None` when there is none.
///
/// Only what may go away is tried again: 429, 503, 504 and broken connections. A POST is not after it may have been carried
/// out. `left` is the time that is left for the request, and `jitter`, from 0 to 1, spreads the tries of several clients.
pub(super) fn pause(
    method: &Method,
    failure: Failure,
    tries: u32,
    left: Duration,
    jitter: f64,
) -> Option<Duration> {
    let may_be_done = method == Method::POST;
    let asked = match failure {
        Failure::Connection => (!may_be_done).then_some(None),
        Failure::Answered(code, after) => match code {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Some(after),
            StatusCode::GATEWAY_TIMEOUT if !may_be_done => Some(after),
            _ => None,
        },
    }?;
    let pause = PAUSE.mul_f64(1.0 + jitter).max(asked.unwrap_or_default());
    (tries < TRIES && pause < left).then_some(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16, after: u64) -> Failure {
        let after = Some(Duration::from_secs(after)).filter(|after| !after.is_zero());
        Failure::Answered(StatusCode::from_u16(code).unwrap(), after)
    }

    #[track_caller]
    fn check(method: &Method, failure: Failure, tries: u32, expect: Option<u64>) {
        let left = Duration::from_secs(3);
        let pause = pause(method, failure, tries, left, 0.5);
        assert_eq!(pause, expect.map(Duration::from_millis), "{failure:?}");
    }

    #[test]
    fn what_may_go_away_is_tried_twice_more() {
        check(&Method::GET, answered(429, 0), 1, Some(300));
        check(&Method::GET, answered(503, 0), 2, Some(300));
        check(&Method::PATCH, answered(504, 0), 2, Some(300));
        check(&Method::GET, Failure::Connection, 1, Some(300));
        check(&Method::GET, answered(429, 0), 3, None);
        for code in [400, 403, 404, 409, 410, 422, 500, 502] {
            check(&Method::GET, answered(code, 0), 1, None);
        }
    }

    #[test]
    fn the_server_says_how_long_to_wait_if_that_fits() {
        check(&Method::GET, answered(429, 1), 1, Some(1000));
        check(&Method::GET, answered(429, 3), 1, None);
    }

    #[test]
    fn what_may_have_been_created_is_not_created_again() {
        check(&Method::POST, answered(429, 0), 1, Some(300));
        check(&Method::POST, answered(504, 0), 1, None);
        check(&Method::POST, Failure::Connection, 1, None);
    }
}
