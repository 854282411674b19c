//! The set of weights that the controller may ask for, computed from the spec and the status of a Rollout only.
//!
//! The controller computes a weight from data that is not in the Rollout, such as the available Pods, and its releases
//! compute it in different ways. The Rollout determines a set that contains every weight that the controller may ask for. An
//! earlier weight that is not in this set is stale: the Rollout was promoted, aborted or rolled back since then.
//!
//! For example, with the steps `setWeight: 20`, `pause`, `setWeight: 40` and the current step `pause` the set is 0 and 20.
//! If the Rollout is aborted, it is 0.
//!
//! Source: argo-rollouts `rollout/trafficrouting.go`, branches of `reconcileTrafficRouting`.

/// The fields of a Rollout that determine the next weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress<'a> {
    /// `status.stableRS`; empty before the first version is stable.
    pub stable_hash: &'a str,
    /// `status.currentPodHash`.
    pub current_hash: &'a str,
    /// `status.abort`.
    pub is_aborted: bool,
    /// `status.promoteFull`.
    pub is_promoted_fully: bool,
    /// `dynamicStableScale`.
    pub is_dynamic: bool,
    /// The weight that means all traffic (`maxTrafficWeight`).
    pub max: i32,
    /// The weight that was set last (`status.canary.weights`).
    pub recorded: Option<Recorded<'a>>,
    /// `setWeight` of each step.
    pub steps: &'a [Option<i32>],
    /// `status.currentStepIndex`; the number of steps after the last one.
    pub step: usize,
}

/// The canary's weight that the controller recorded after its last complete reconcile.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// Weight of the canary.
    pub weight: i32,
    /// Pod hash of the canary that had this weight.
    pub hash: &'a str,
}

/// A set of weights. 0 is always in it: the controller asks for 0 whenever no Pod of the canary is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admissible {
    /// All weights from 0 to this one.
    up_to: i32,
    /// Single weights.
    also: [i32; 2],
    max: i32,
}

impl Admissible {
    /// The weights that the controller may ask for while a Rollout has this `progress`.
    #[must_use]
    pub fn new(progress: &Progress<'_>) -> Self {
        let Progress { max, recorded, .. } = *progress;
        let none = Self {
            up_to: 0,
            also: [0; 2],
            max,
        };
        let up_to = |up_to| Self { up_to, ..none };
        let also = |also| Self { also, ..none };
        let recorded_or_all = recorded.map_or(max, |recorded| recorded.weight);
        if progress.stable_hash.is_empty() {
            return none;
        }
        if progress.stable_hash == progress.current_hash {
            let goes_back = recorded.is_some_and(|it| it.hash != progress.current_hash);
            return if progress.is_dynamic && goes_back {
                up_to(recorded_or_all)
            } else {
                none
            };
        }
        if progress.is_aborted {
            return if progress.is_dynamic {
                up_to(recorded_or_all)
            } else {
                none
            };
        }
        if progress.is_promoted_fully {
            return if progress.is_dynamic {
                up_to(max)
            } else {
                also([0, recorded.map_or(0, |recorded| recorded.weight)])
            };
        }
        if progress.steps.is_empty() {
            return none;
        }
        let last = |count: usize| {
            let weights = progress.steps.iter().take(count);
            weights.flatten().next_back().copied().unwrap_or(0)
        };
        if progress.step < progress.steps.len() {
            also([last(progress.step), last(progress.step + 1)])
        } else {
            also([max, last(progress.steps.len())])
        }
    }

    /// Whether the controller may ask for `weight`. A weight above the maximum means the maximum, since with
    /// `dynamicStableScale` the controller does not limit the weight of a full promotion.
    #[must_use]
    pub fn contains(&self, weight: i32) -> bool {
        // The CustomResourceDefinition admits a negative maximum.
        let weight = weight.clamp(0, self.max.max(0));
        weight <= self.up_to || self.also.contains(&weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Option<i32>; 5] = [Some(20), None, Some(40), None, Some(60)];

    /// An update before step `step`.
    fn updating(step: usize) -> Progress<'static> {
        Progress {
            stable_hash: "s1",
            current_hash: "c1",
            max: 100,
            recorded: recorded(20, "c1"),
            steps: &STEPS,
            step,
            ..Progress::default()
        }
    }

    fn recorded(weight: i32, hash: &str) -> Option<Recorded<'_>> {
        Some(Recorded { weight, hash })
    }

    /// Checks which of the weights 0, 10, 20 and so on up to 100 are admissible.
    #[track_caller]
    fn check(progress: &Progress<'_>, expect: &[i32]) {
        let admissible = Admissible::new(progress);
        let weights = (0..=10).map(|tens| tens * 10);
        let found: Vec<i32> = weights.filter(|it| admissible.contains(*it)).collect();
        assert_eq!(found, expect, "{progress:?}");
    }

    #[test]
    fn promoted() {
        let promoted = Progress {
            current_hash: "s1",
            ..updating(5)
        };
        check(&promoted, &[0]);
        // The recorded weight is stale: it is that of the version that is stable now.
        let dynamic = Progress {
            is_dynamic: true,
            recorded: recorded(40, "s1"),
            ..promoted
        };
        check(&dynamic, &[0]);
        // A rollback, until the stable version has all its Pods.
        let goes_back = Progress {
            recorded: recorded(40, "c1"),
            ..dynamic
        };
        check(&goes_back, &[0, 10, 20, 30, 40]);
        check(
            &Progress {
                is_dynamic: false,
                ..goes_back
            },
            &[0],
        );
    }

    #[test]
    fn aborted() {
        let aborted = Progress {
            is_aborted: true,
            ..updating(0)
        };
        check(&aborted, &[0]);
        let dynamic = Progress {
            is_dynamic: true,
            ..aborted
        };
        check(&dynamic, &[0, 10, 20]);
        let unrecorded = Progress {
            recorded: None,
            ..dynamic
        };
        check(&unrecorded, &[0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
        assert!(!Admissible::new(&dynamic).contains(21));
    }

    #[test]
    fn promoted_fully() {
        let promoted = Progress {
            is_promoted_fully: true,
            ..updating(3)
        };
        check(&promoted, &[0, 20]);
        let unrecorded = Progress {
            recorded: None,
            ..promoted
        };
        check(&unrecorded, &[0]);
        let dynamic = Progress {
            is_dynamic: true,
            ..promoted
        };
        check(&dynamic, &[0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
        assert!(Admissible::new(&dynamic).contains(120));
    }

    #[test]
    fn at_a_step() {
        check(&updating(0), &[0, 20]);
        check(&updating(1), &[0, 20]);
        check(&updating(2), &[0, 20, 40]);
        check(&updating(3), &[0, 40]);
        check(&updating(4), &[0, 40, 60]);
    }

    #[test]
    fn after_the_last_step() {
        check(&updating(5), &[0, 60, 100]);
        check(&updating(9), &[0, 60, 100]);
        let no_weights = Progress {
            steps: &[None, None],
            ..updating(2)
        };
        check(&no_weights, &[0, 100]);
    }

    /// The CustomResourceDefinition has no minimum.
    #[test]
    fn with_a_maximum_below_1() {
        for max in [0, -5, i32::MIN] {
            for progress in [updating(0), updating(5)] {
                let admissible = Admissible::new(&Progress { max, ..progress });
                assert!(admissible.contains(0), "{max}");
            }
        }
    }

    #[test]
    fn without_steps_or_without_a_stable_version() {
        let no_steps = Progress {
            steps: &[],
            ..updating(0)
        };
        check(&no_steps, &[0]);
        let first = Progress {
            stable_hash: "",
            ..updating(5)
        };
        check(&first, &[0]);
    }
}
