//! How many requests and tokens each API key may use per minute and per day.
//!
//! In: requests of a key when they begin, and tokens when they are known. Out: whether a request may begin,
//! or when the next one may. Invariants:
//!
//! * A limit of N per period is a bucket of N that refills evenly, N in each period.
//! * Tokens are counted after their use and may overdraw a bucket: a running request never fails, and the
//!   next ones wait until the bucket is positive again.
//! * A key whose buckets are full is forgotten when another one begins, so that keys that were removed do not
//!   accumulate.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ntl_common::similar::most_similar;

/// Maximum of a limit.
pub(crate) const UNITS_MAX: u64 = 1_000_000_000_000;

/// Returns the present time.
pub type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Requests,
    Tokens,
    /// Tokens of prompts and answers of other engines.
    UpstreamTokens,
}

/// A maximum number of units per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    /// The name of the flag, and of the setting of a key in `--api-key-file`.
    pub(crate) name: &'static str,
    units: &'static str,
    pub(crate) unit: Unit,
    /// The time in which a bucket refills, in nanoseconds.
    period: u128,
}

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Limit {
    const ALL: [Self; 5] = [
        Self::new("requests-per-minute", "requests per minute", Unit::Requests, MINUTE),
        Self::new("requests-per-day", "requests per day", Unit::Requests, DAY),
        Self::new("tokens-per-minute", "tokens per minute", Unit::Tokens, MINUTE),
        Self::new("tokens-per-day", "tokens per day", Unit::Tokens, DAY),
        Self::new("upstream-budget", "tokens of other engines per day", Unit::UpstreamTokens, DAY),
    ];

    const fn new(name: &'static str, units: &'static str, unit: Unit, period: Duration) -> Self {
        Self { name, units, unit, period: period.as_nanos() }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.name == name)
    }
}

/// Why the settings of a key cannot be used. The messages quote nothing from the file, which has keys.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    #[error("`{name}` must be `none` or an integer from 1 to {}", UNITS_MAX)]
    Value { name: &'static str },
    #[error("`{0}` occurs twice")]
    Twice(&'static str),
    #[error("`{0}` needs a name and a key before it: `NAME KEY {0}=VALUE`")]
    Unnamed(&'static str),
    #[error("a setting after the key is none of `{}`{hint}", Limit::ALL.map(|limit| limit.name).join("`, `"))]
    Unknown { hint: String },
}

/// A limit of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maximum {
    /// Also if the server has a default.
    Unlimited,
    Units(NonZeroU64),
}

/// The limits of a key, in the order of `Limit::ALL`. `None` is the default of the server, or no limit in
/// this default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota([Option<Maximum>; 5]);

impl Quota {
    /// The default of the server. The limits have the order of `Limit::ALL`.
    pub(crate) fn default_of(limits: [Option<NonZeroU64>; 5]) -> Self {
        Self(limits.map(|units| units.map(Maximum::Units)))
    }

    /// Reads the settings of a key, such as `tokens-per-day=1000` or `tokens-per-day=none`.
    pub(crate) fn parse(settings: &[&str]) -> Result<Self, QuotaError> {
        let mut quota = Self::default();
        for setting in settings {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let Some(limit) = Limit::named(name) else {
                let similar = most_similar(name, Limit::ALL.map(|limit| limit.name));
                let hint = similar.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
                return Err(QuotaError::Unknown { hint });
            };
            let units = value.parse().ok().filter(|units: &NonZeroU64| units.get() <= UNITS_MAX);
            let maximum = match (value, units) {
                ("none", _) => Maximum::Unlimited,
                (_, Some(units)) => Maximum::Units(units),
                (_, None) => return Err(QuotaError::Value { name: limit.name }),
            };
            for (at, place) in Limit::ALL.into_iter().zip(&mut quota.0) {
                if at == limit && place.replace(maximum).is_some() {
                    return Err(QuotaError::Twice(limit.name));
                }
            }
        }
        Ok(quota)
    }

    /// Fails if a word that should be a key or its name is the setting of one.
    pub(crate) fn check_no_setting(word: &str) -> Result<(), QuotaError> {
        match word.split_once('=').and_then(|(name, _)| Limit::named(name)) {
            Some(limit) => Err(QuotaError::Unnamed(limit.name)),
            None => Ok(()),
        }
    }

    /// The first limit, if there is one.
    pub(crate) fn first(&self) -> Option<Limit> {
        Limit::ALL.into_iter().zip(self.0).find_map(|(limit, maximum)| maximum.map(|_| limit))
    }

    /// Full buckets of a key with this quota.
    fn buckets(self, default: Self) -> Vec<Bucket> {
        let mut buckets = Vec::new();
        for ((limit, own), default) in Limit::ALL.into_iter().zip(self.0).zip(default.0) {
            if let Some(Maximum::Units(max)) = own.or(default) {
                buckets.push(Bucket { limit, max, used: 0 });
            }
        }
        buckets
    }
}

/// A key has used up one of its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the quota of this API key is {max} {}, and it is used up; try again in {} s",
    .limit.units,
    self.seconds()
)]
pub(crate) struct QuotaExceeded {
    pub(crate) limit: Limit,
    max: NonZeroU64,
    wait: Duration,
}

impl QuotaExceeded {
    /// Whole seconds after which a request may begin.
    pub(crate) fn seconds(&self) -> u32 {
        let seconds = self.wait.as_nanos().div_ceil(1_000_000_000);
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }
}

/// The state of a limit, as headers report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) max: u64,
    pub(crate) remaining: u64,
    /// Time until the bucket is full.
    pub(crate) reset: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    limit: Limit,
    max: NonZeroU64,
    /// Used and not yet refilled: units times nanoseconds of the period, so that nothing is rounded.
    used: u128,
}

impl Bucket {
    fn refill(&mut self, elapsed: Duration) {
        let refilled = u128::from(self.max.get()).saturating_mul(elapsed.as_nanos());
        self.used = self.used.saturating_sub(refilled);
    }

    fn add(&mut self, units: u64) {
        self.used = self.used.saturating_add(u128::from(units) * self.limit.period);
    }

    fn rate(&self) -> Rate {
        let (max, period) = (self.max.get(), self.limit.period);
        let remaining = (u128::from(max) * period).saturating_sub(self.used) / period;
        let remaining = u64::try_from(remaining).unwrap_or(max);
        Rate { max, remaining, reset: self.time(self.used) }
    }

    /// Time until the bucket has a unit.
    fn wait(&self) -> Duration {
        let free = u128::from(self.max.get() - 1) * self.limit.period;
        self.time(self.used.saturating_sub(free))
    }

    /// Time in which this much refills.
    fn time(&self, used: u128) -> Duration {
        let nanoseconds = used.div_ceil(u128::from(self.max.get()));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

#[derive(Debug)]
struct KeyState {
    buckets: Vec<Bucket>,
    /// When they were last refilled.
    at: Instant,
}

impl KeyState {
    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at);
        self.buckets.iter_mut().for_each(|bucket| bucket.refill(elapsed));
        self.at = self.at.max(now);
    }

    /// Sets the present limits of the key, given as full buckets. A limit that it had before keeps its use.
    fn set_limits(&mut self, full: &[Bucket]) {
        let mut buckets = full.to_vec();
        for bucket in &mut buckets {
            if let Some(known) = self.buckets.iter().find(|known| known.limit == bucket.limit) {
                bucket.used = known.used;
            }
        }
        self.buckets = buckets;
    }

    /// Fails if a limit of these units is used up, with the one that takes longest to refill.
    fn check(&self, units: &[Unit]) -> Result<(), QuotaExceeded> {
        let mut longest: Option<QuotaExceeded> = None;
        for bucket in &self.buckets {
            let wait = bucket.wait();
            let is_longer = wait > longest.map_or(Duration::ZERO, |longest| longest.wait);
            if is_longer && units.contains(&bucket.limit.unit) {
                longest = Some(QuotaExceeded { limit: bucket.limit, max: bucket.max, wait });
            }
        }
        longest.map_or(Ok(()), Err)
    }

    fn is_full(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.used == 0)
    }
}

/// The quotas of all keys, and what they have used.
pub(crate) struct Quotas {
    default: Quota,
    clock: Clock,
    keys: Mutex<HashMap<u64, KeyState>>,
}

impl fmt::Debug for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quotas").field("default", &self.default).finish_non_exhaustive()
    }
}

impl Quotas {
    pub(crate) fn new(default: Quota, clock: Clock) -> Self {
        Self { default, clock, keys: Mutex::default() }
    }

    /// The quota of the key with this id and these limits; `None` if it has none, also by default.
    pub(crate) fn of(self: &Arc<Self>, key: u64, own: Quota) -> Option<KeyQuota> {
        let buckets = own.buckets(self.default);
        (!buckets.is_empty()).then(|| KeyQuota { quotas: Arc::clone(self), key, buckets })
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<u64, KeyState>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The quota of one key.
#[derive(Debug, Clone)]
pub(crate) struct KeyQuota {
    quotas: Arc<Quotas>,
    key: u64,
    /// Its limits, as full buckets.
    buckets: Vec<Bucket>,
}

impl KeyQuota {
    /// Counts a request, unless a limit is used up. The error has the limit that takes longest to refill.
    pub(crate) fn begin(&self) -> Result<(), QuotaExceeded> {
        let mut keys = self.quotas.keys();
        let state = self.refilled(&mut keys);
        state.set_limits(&self.buckets);
        state.check(&[Unit::Requests, Unit::Tokens])?;
        add(state, Unit::Requests, 1);
        Ok(())
    }

    /// Fails if the budget of tokens of other engines is used up.
    pub(crate) fn check_upstream(&self) -> Result<(), QuotaExceeded> {
        self.refilled(&mut self.quotas.keys()).check(&[Unit::UpstreamTokens])
    }

    /// Counts units that were used.
    pub(crate) fn add(&self, unit: Unit, units: u64) {
        add(self.refilled(&mut self.quotas.keys()), unit, units);
    }

    /// The limit of this unit with the fewest remaining ones.
    pub(crate) fn rate(&self, unit: Unit) -> Option<Rate> {
        let mut keys = self.quotas.keys();
        let buckets = self.refilled(&mut keys).buckets.iter();
        buckets.filter(|bucket| bucket.limit.unit == unit).map(Bucket::rate).min_by_key(|rate| rate.remaining)
    }

    /// The state of the key now.
    fn refilled<'a>(&self, keys: &'a mut HashMap<u64, KeyState>) -> &'a mut KeyState {
        let now = (self.quotas.clock)();
        if !keys.contains_key(&self.key) {
            keys.retain(|_, state| {
                state.refill(now);
                !state.is_full()
            });
        }
        let state =
            keys.entry(self.key).or_insert_with(|| KeyState { buckets: self.buckets.clone(), at: now });
        state.refill(now);
        state
    }
}

fn add(state: &mut KeyState, unit: Unit, units: u64) {
    for bucket in &mut state.buckets {
        if bucket.limit.unit == unit {
            bucket.add(units);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that a test sets.
    struct Time(Arc<Mutex<Instant>>);

    impl Time {
        fn start() -> Self {
            Self(Arc::new(Mutex::new(Instant::now())))
        }

        fn clock(&self) -> Clock {
            let now = Arc::clone(&self.0);
            Arc::new(move || *now.lock().unwrap())
        }

        fn pass(&self, time: Duration) {
            *self.0.lock().unwrap() += time;
        }
    }

    fn quotas(time: &Time, settings: &[&str]) -> Arc<Quotas> {
        Arc::new(Quotas::new(Quota::parse(settings).unwrap(), time.clock()))
    }

    /// The quota of a key with these limits.
    fn of(quotas: &Arc<Quotas>, key: u64, settings: &[&str]) -> Option<KeyQuota> {
        quotas.of(key, Quota::parse(settings).unwrap())
    }

    /// Seconds until a request may begin, 0 if it has begun.
    fn wait(quota: &KeyQuota) -> u32 {
        quota.begin().map_or_else(|exceeded| exceeded.seconds(), |()| 0)
    }

    #[test]
    fn exactly_the_limit_passes_and_refills_evenly() {
        let time = Time::start();
        let quota = of(&quotas(&time, &["requests-per-minute=7"]), 1, &[]).unwrap();
        // 60 / 7 s are not a whole number of nanoseconds.
        for _ in 0..20 {
            for left in (0..7).rev() {
                assert_eq!(wait(&quota), 0);
                assert_eq!(quota.rate(Unit::Requests).unwrap().remaining, left);
            }
            assert_eq!(wait(&quota), 9);
            assert_eq!(quota.rate(Unit::Requests).unwrap().reset, Duration::from_secs(60));
            time.pass(Duration::from_secs(60));
        }
        for _ in 0..7 {
            assert_eq!(wait(&quota), 0);
        }
        time.pass(Duration::from_nanos(8_571_428_571));
        assert_eq!(wait(&quota), 1, "a nanosecond is missing");
        time.pass(Duration::from_nanos(1));
        assert_eq!(wait(&quota), 0);
        time.pass(Duration::from_secs(3600));
        assert_eq!(quota.rate(Unit::Requests).unwrap().remaining, 7, "a bucket is never more than full");
    }

    #[test]
    fn tokens_may_overdraw_a_limit_and_are_repaid_before_the_next_request() {
        let time = Time::start();
        let quota = of(&quotas(&time, &["tokens-per-minute=60"]), 1, &[]).unwrap();
        assert_eq!(wait(&quota), 0);
        quota.add(Unit::Tokens, 59);
        assert_eq!(wait(&quota), 0, "one token is left");
        quota.add(Unit::Tokens, 181);
        let rate = quota.rate(Unit::Tokens).unwrap();
        assert_eq!((rate.remaining, rate.reset), (0, Duration::from_secs(240)));
        assert_eq!(wait(&quota), 181);
        time.pass(Duration::from_secs(180));
        let exceeded = quota.begin().unwrap_err();
        assert_eq!(
            exceeded.to_string(),
            "the quota of this API key is 60 tokens per minute, and it is used up; try again in 1 s"
        );
        time.pass(Duration::from_secs(1));
        assert_eq!(wait(&quota), 0);
        assert_eq!(quota.rate(Unit::Requests), None);
    }

    #[test]
    fn a_budget_for_other_engines_stops_their_models_only() {
        let time = Time::start();
        let quota = of(&quotas(&time, &["upstream-budget=86400", "tokens-per-day=10"]), 1, &[]).unwrap();
        assert_eq!((wait(&quota), quota.check_upstream()), (0, Ok(())));
        quota.add(Unit::UpstreamTokens, 86_401);
        let exceeded = quota.check_upstream().unwrap_err();
        assert_eq!(
            exceeded.to_string(),
            "the quota of this API key is 86400 tokens of other engines per day, and it is used up; try again in \
             2 s"
        );
        assert_eq!(wait(&quota), 0);
        assert_eq!(quota.rate(Unit::Tokens).unwrap().remaining, 10);
        time.pass(Duration::from_secs(2));
        assert_eq!(quota.check_upstream(), Ok(()));
    }

    #[test]
    fn the_limit_that_takes_longest_is_reported_and_refused_requests_count_nothing() {
        let time = Time::start();
        let quotas = quotas(&time, &["requests-per-minute=1", "requests-per-day=2"]);
        let quota = of(&quotas, 1, &[]).unwrap();
        assert_eq!(wait(&quota), 0);
        for _ in 0..5 {
            assert_eq!(quota.begin().unwrap_err().limit.name, "requests-per-minute");
        }
        time.pass(Duration::from_secs(60));
        assert_eq!(wait(&quota), 0);
        let exceeded = quota.begin().unwrap_err();
        assert_eq!((exceeded.limit.name, exceeded.seconds()), ("requests-per-day", 12 * 3600 - 60));
        assert_eq!(quota.rate(Unit::Requests).unwrap().max, 1, "ties go to the shorter period");
    }

    #[test]
    fn keys_have_their_own_limits_and_counts() {
        let time = Time::start();
        let quotas = quotas(&time, &["requests-per-day=1"]);
        let [a, b] = [1, 2].map(|key| of(&quotas, key, &[]).unwrap());
        let more = of(&quotas, 3, &["requests-per-day=2", "tokens-per-day=5"]).unwrap();
        assert!(of(&quotas, 4, &["requests-per-day=none"]).is_none());
        assert_eq!((wait(&a), wait(&b), wait(&more), wait(&more)), (0, 0, 0, 0));
        assert!(wait(&a) > 0 && wait(&b) > 0 && wait(&more) > 0);
        assert_eq!(more.rate(Unit::Tokens).unwrap().remaining, 5);
    }

    #[test]
    fn changed_limits_keep_what_was_used_and_running_requests_do_not_change_them() {
        let time = Time::start();
        let quotas = quotas(&time, &[]);
        let before = of(&quotas, 1, &["requests-per-day=1"]).unwrap();
        assert_eq!(wait(&before), 0);
        let after = of(&quotas, 1, &["requests-per-day=3", "tokens-per-day=10"]).unwrap();
        assert_eq!(wait(&after), 0);
        assert_eq!(after.rate(Unit::Requests).unwrap().remaining, 1);
        // The tokens of a request that began under the earlier limits.
        before.add(Unit::Tokens, 4);
        assert_eq!(after.rate(Unit::Tokens).unwrap().remaining, 6);
    }

    #[test]
    fn keys_that_owe_nothing_are_forgotten() {
        let time = Time::start();
        let quotas = quotas(&time, &["requests-per-minute=10", "tokens-per-minute=10"]);
        for number in 0..100 {
            assert_eq!(wait(&of(&quotas, number, &[]).unwrap()), 0);
        }
        of(&quotas, 7, &[]).unwrap().add(Unit::Tokens, 1000);
        assert_eq!(quotas.keys().len(), 100);
        time.pass(Duration::from_secs(60));
        assert_eq!(wait(&of(&quotas, 100, &[]).unwrap()), 0);
        assert_eq!(quotas.keys().len(), 2, "the new one and the one with a debt");
    }

    #[test]
    fn the_largest_limits_and_counts_do_not_overflow() {
        let time = Time::start();
        let most = format!("tokens-per-day={UNITS_MAX}");
        let quota = of(&quotas(&time, &[]), 1, &[&most, "tokens-per-minute=1"]).unwrap();
        quota.add(Unit::Tokens, u64::MAX);
        assert_eq!(wait(&quota), u32::MAX);
        time.pass(Duration::from_secs(u64::from(u32::MAX)));
        assert_eq!(quota.rate(Unit::Tokens).unwrap().remaining, 0);
    }
}
