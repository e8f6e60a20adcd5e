//! The retention of a request: its own, the server's default, or the best measured one; and checks that the model
//! supports it.

use std::sync::Arc;

use anyhow::{Context, anyhow};
use kvik_cache::retain::{Budget, HeadImportance, ModelShape, Retention, RetentionError, When};
use kvik_engine::engine::EngineConfig;
use kvik_engine::retain::{kv_heads, model_shape};
use kvik_kernels::KvLayout;
use kvik_model::{ModelConfig, gates::Gates};

use crate::{
    measured::{Loss, LossDoubt, Measured, MeasuredGates, MeasuredHeads, MeasuredLosses, RIGHT_CASES_MIN},
    settings::retain::{RetainArgs, RetainChoice},
};

/// Percent of right answers or of perplexity lost up to which no warning is given.
const LOSS_SMALL: f64 = 2.0;

/// The server's limits on retention, and the measured losses.
#[derive(Debug, Default)]
pub struct Retaining {
    /// Default for requests that specify none.
    usual: Option<Retention>,
    /// Maximum loss of recall and of perplexity in percent; with `None` any retention is allowed, even unmeasured.
    loss_max: Option<f64>,
    /// The measured losses of this model.
    losses: MeasuredLosses,
    /// The KV format or map of this server.
    kv: String,
}

/// The measurements of a model by `kvik eval` that retention depends on.
#[derive(Default)]
pub(super) struct KeptMeasurements {
    pub(super) losses: MeasuredLosses,
    pub(super) calibration: Option<HeadImportance>,
    pub(super) gates: Option<Arc<Gates>>,
}

impl KeptMeasurements {
    /// The measurements of this model, whose keys and values have this layout.
    pub(super) fn of(model: &[u8; 32], layout: &KvLayout) -> KeptMeasurements {
        // Without a home directory there are no stored measurements.
        let Ok(measured) = Measured::open() else { return KeptMeasurements::default() };
        let kv_heads = kv_heads(layout);
        let heads: Option<MeasuredHeads> = measured.load(model);
        let gates: Option<MeasuredGates> = measured.load(model);
        KeptMeasurements {
            losses: measured.load(model).unwrap_or_default(),
            calibration: heads.and_then(|heads| heads.importance(&kv_heads)),
            gates: gates.and_then(|gates| gates.gates(layout)).map(Arc::new),
        }
    }

    /// Those that a retention depends on; `digest` is called only if there are such.
    fn for_one(
        retention: &Retention,
        layout: &KvLayout,
        digest: impl FnOnce() -> [u8; 32],
    ) -> KeptMeasurements {
        match retention.budget == Budget::Calibrated || retention.needs().gated {
            true => KeptMeasurements::of(&digest(), layout),
            false => KeptMeasurements::default(),
        }
    }
}

/// The scope of a retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// A sequence, compressed first at the end of its whole prompt: the question is seen when tokens are dropped.
    Sequence,
    /// A prefix that many requests share: the question is unseen.
    Prefix,
}

/// Why a choice is refused.
#[allow(missing_docs, reason = "the error texts name the fields")]
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RetainRefusal {
    /// The best policy is requested, and none with a small enough loss is known.
    #[error(
        "policy: `auto` takes a policy that was measured to lose at most {allowed}% of recall and of perplexity, on {min} or more cases that the model answers rightly with everything kept, and for this model with KV in {kv} there is none; run `kvik eval` with the same --model and --kv, allow more (auto:LOSS), or name a policy",
        min = RIGHT_CASES_MIN
    )]
    NoneGoodEnough { allowed: f64, kv: String },
    /// Only measured policies are allowed.
    #[error(
        "policy: what `{retention}` loses on this model with KV in {kv} was not measured, and --retain-max-loss {allowed} allows measured policies only; run `kvik eval --retain {retention}` first, or use auto"
    )]
    Unmeasured { retention: String, kv: String, allowed: f64 },
    /// Only measured policies are allowed, and nothing follows from this measurement.
    #[error(
        "policy: what `{retention}` loses on this model with KV in {kv} is not known, and --retain-max-loss {allowed} goes by the worse of recall and perplexity: {doubt}"
    )]
    Doubtful { retention: String, kv: String, allowed: f64, doubt: LossDoubt },
    /// The measured loss exceeds the limit.
    #[error(
        "keep: `{retention}` loses {loss}, and --retain-max-loss allows {allowed}% of recall and of perplexity; keep more, or use a policy that loses less"
    )]
    LosesMore { retention: String, loss: Loss, allowed: f64 },
}

impl RetainRefusal {
    /// The field at fault.
    pub fn field(&self) -> &'static str {
        match self {
            RetainRefusal::NoneGoodEnough { .. }
            | RetainRefusal::Unmeasured { .. }
            | RetainRefusal::Doubtful { .. } => "policy",
            RetainRefusal::LosesMore { .. } => "keep",
        }
    }
}

impl Retaining {
    /// Applies the flags to the measured losses of this model; `kv` is the KV format of the server. Warns about a
    /// default that may lose much.
    ///
    /// # Errors
    /// If the default is unavailable: names the flag and the reason.
    pub fn new(args: &RetainArgs, losses: MeasuredLosses, kv: &str) -> anyhow::Result<Retaining> {
        let mut retaining =
            Retaining { usual: None, loss_max: args.retain_max_loss, losses, kv: kv.to_owned() };
        let usual = retaining.choose(args.retain).map_err(|refusal| anyhow!("--retain: {refusal}"))?;
        if let Some(retention) = &usual {
            retaining.warn(retention);
        }
        retaining.usual = usual;
        Ok(retaining)
    }

    /// The measured losses of this model, with any KV format.
    pub fn losses(&self) -> &MeasuredLosses {
        &self.losses
    }

    /// The default for requests that specify none.
    pub fn usual(&self) -> Option<Retention> {
        self.usual
    }

    /// The retention for a request's choice; `None` keeps everything.
    ///
    /// # Errors
    /// If the choice is unavailable.
    pub fn choose(&self, asked: Option<RetainChoice>) -> Result<Option<Retention>, RetainRefusal> {
        match asked {
            None => Ok(self.usual),
            Some(choice) => self.choose_for(Reach::Sequence, choice),
        }
    }

    /// The retention for a choice with this reach; `None` keeps everything.
    ///
    /// # Errors
    /// If the choice is unavailable.
    pub fn choose_for(&self, reach: Reach, asked: RetainChoice) -> Result<Option<Retention>, RetainRefusal> {
        let chosen = match asked {
            RetainChoice::Everything => return Ok(None),
            RetainChoice::Chosen(retention) => self.check(retention, reach)?,
            RetainChoice::Auto { loss_max } => {
                let best = self.best(self.loss_max.map_or(loss_max, |max| max.min(loss_max)), reach)?;
                best.under_pressure_too()
            }
        };
        // The retained positions of a prefix depend on nothing but the prefix.
        Ok(Some(if reach == Reach::Sequence { chosen } else { chosen.of_prefix() }))
    }

    /// The measured loss of a retention, if known. No policy loses less with the question unseen than with the question
    /// seen, so the former stands in for the latter.
    pub fn loss(&self, retention: &Retention, reach: Reach) -> Option<Loss> {
        // The time of compression does not matter: `kvik eval` measures at points.
        let retention = &Retention { when: When::Points, ..*retention };
        reach.measured_with(|seen| self.losses.loss(&self.kv, retention, seen))
    }

    /// Checks that a retention is allowed.
    ///
    /// # Errors
    /// If there is a limit, and its loss by recall or by perplexity exceeds it, or is not known.
    pub fn check(&self, retention: Retention, reach: Reach) -> Result<Retention, RetainRefusal> {
        let Some(allowed) = self.loss_max else { return Ok(retention) };
        let (text, kv) = (retention.to_string(), self.kv.clone());
        let Some(loss) = self.loss(&retention, reach) else {
            return Err(RetainRefusal::Unmeasured { retention: text, kv, allowed });
        };
        match loss.doubt() {
            _ if loss.worst > allowed => Err(RetainRefusal::LosesMore { retention: text, loss, allowed }),
            Some(doubt) => Err(RetainRefusal::Doubtful { retention: text, kv, allowed, doubt }),
            None => Ok(retention),
        }
    }

    /// Refuses retentions of the flags that the model does not support; `idle` is the one for idle time.
    pub(super) fn check_model(&self, idle: Option<&Retention>, config: &EngineConfig) -> anyhow::Result<()> {
        if let Some(retention) = self.usual() {
            retention.check_model(&config.model_shape()).with_context(|| format!("--retain {retention}"))?;
        }
        if let Some(retention) = idle {
            let allowed = self.check(*retention, Reach::Prefix).map_err(anyhow::Error::from);
            let checked = allowed.and_then(|_| Ok(retention.check_model(&config.model_shape())?));
            checked.with_context(|| format!("--retain-idle {retention}"))?;
        }
        Ok(())
    }

    /// The retention that keeps the fewest positions and loses at most `allowed` percent of recall and of perplexity in
    /// every task.
    fn best(&self, allowed: f64, reach: Reach) -> Result<Retention, RetainRefusal> {
        let refusal = || RetainRefusal::NoneGoodEnough { allowed, kv: self.kv.clone() };
        reach.measured_with(|seen| self.losses.best(&self.kv, seen, allowed)).ok_or_else(refusal)
    }

    fn warn(&self, retention: &Retention) {
        match self.loss(retention, Reach::Sequence) {
            None => tracing::warn!(
                "what --retain {retention} loses was not measured on this model with KV in {}; `kvik eval --retain {retention}` measures it",
                self.kv
            ),
            Some(loss) if loss.worst > LOSS_SMALL => {
                tracing::warn!("--retain {retention} loses {loss} on this model");
            }
            Some(loss) => {
                if let Some(doubt) = loss.doubt() {
                    tracing::warn!("what --retain {retention} loses on this model is not known: {doubt}");
                }
            }
        }
    }
}

/// Checks that a model which need not be loaded, and whose keys and values have this layout, supports a retention;
/// `digest` is called only if that depends on measurements.
///
/// # Errors
/// What the model lacks, or the invalid field.
pub fn check_model(
    retention: &Retention,
    (config, layout): (&ModelConfig, &KvLayout),
    digest: impl FnOnce() -> [u8; 32],
) -> Result<(), RetentionError> {
    let KeptMeasurements { calibration, gates, .. } = KeptMeasurements::for_one(retention, layout, digest);
    let (heads, gated, kv_heads) = (calibration.as_ref(), gates.is_some(), kv_heads(layout));
    retention.check_model(&ModelShape { heads, gated, ..model_shape(config, layout, &kv_heads) })
}

/// The measured importance of the heads of a model, if there is one and the retention goes by it; else `digest` is not
/// called.
pub fn importance(
    retention: &Retention,
    layout: &KvLayout,
    digest: impl FnOnce() -> [u8; 32],
) -> Option<HeadImportance> {
    KeptMeasurements::for_one(retention, layout, digest).calibration
}

impl Reach {
    /// The measurement that applies to this reach; `of` returns it for the question seen or unseen.
    fn measured_with<T>(self, of: impl Fn(bool) -> Option<T>) -> Option<T> {
        let seen = if self == Reach::Sequence { of(true) } else { None };
        seen.or_else(|| of(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::{SettingLosses, TaskLoss};

    fn losses() -> MeasuredLosses {
        let mut losses = MeasuredLosses::default();
        let mut record = |retain: &str, kept: f64, percent: f64, question_seen: bool| {
            let recall = TaskLoss { percent, cases: 100, right: 90, predicts: false };
            let text = TaskLoss { percent: 0.5 * percent, cases: 16, right: 0, predicts: true };
            let tasks = [("recall".to_owned(), recall), ("stories".to_owned(), text)].into();
            let (kv, retain, command) = ("f16".to_owned(), retain.to_owned(), String::new());
            losses.record(SettingLosses { kv, retain, question_seen, kept, tasks, date: 0, command });
        };
        record("kvzip:0.5", 0.5, 0.0, true);
        record("keydiff:0.25", 0.25, 1.0, true);
        record("snapkv:0.2", 0.2, 30.0, true);
        record("keydiff:0.1", 0.1, 4.0, false);
        losses
    }

    fn retaining(loss_max: Option<f64>) -> Retaining {
        let usual = Some("kvzip:0.5".parse().unwrap());
        Retaining { usual, loss_max, losses: losses(), kv: "f16".to_owned() }
    }

    fn choose(retaining: &Retaining, text: &str) -> Result<String, RetainRefusal> {
        let chosen = retaining.choose(Some(text.parse().unwrap()))?;
        Ok(chosen.map_or_else(String::new, |retention| retention.to_string()))
    }

    #[test]
    fn a_request_gets_what_it_asks_for_or_the_default() {
        let retaining = retaining(None);
        assert_eq!(retaining.choose(None), Ok(Some("kvzip:0.5".parse().unwrap())));
        assert_eq!(choose(&retaining, "none").unwrap(), "");
        assert_eq!(choose(&retaining, "sinks:0.1").unwrap(), "sinks:0.1");
        assert_eq!(Retaining::default().choose(None), Ok(None));
    }

    #[test]
    fn auto_keeps_least_of_what_loses_no_more_than_allowed() {
        let check = |text: &str, expect: &str| assert_eq!(choose(&retaining(None), text).unwrap(), expect);
        // Compression may also happen when memory is short, unless the policy must know its points in advance.
        check("auto", "keydiff:0.25,when=either");
        check("auto:0", "kvzip:0.5");
        check("auto:50", "snapkv:0.2");
        assert_eq!(
            choose(&retaining(Some(0.5)), "auto").unwrap(),
            "kvzip:0.5",
            "no more than the server allows"
        );
        let error = choose(&Retaining::default(), "auto").unwrap_err();
        assert_eq!(error.field(), "policy");
        for said in ["kvik eval", "2% of recall and of perplexity", "20 or more cases"] {
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn a_bound_refuses_what_loses_more_or_was_not_measured() {
        let retaining = retaining(Some(5.0));
        assert_eq!(choose(&retaining, "keydiff:0.25").unwrap(), "keydiff:0.25");
        assert_eq!(
            choose(&retaining, "keydiff:0.1").unwrap(),
            "keydiff:0.1",
            "measured with the question unseen"
        );
        assert_eq!(choose(&retaining, "none").unwrap(), "");
        let error = choose(&retaining, "snapkv:0.2").unwrap_err();
        assert_eq!(error.field(), "keep");
        for said in ["30.0% of recall in recall", "of perplexity 15.0%", "90 right cases", "allows 5%"] {
            assert!(error.to_string().contains(said), "{error}");
        }
        let error = choose(&retaining, "snapkv:0.3").unwrap_err();
        assert_eq!(error.field(), "policy");
        assert!(error.to_string().contains("kvik eval --retain snapkv:0.3"), "{error}");
    }

    /// Recall may be whole where the text around it is ruined, and the other way round: either is refused.
    #[test]
    fn a_bound_holds_for_recall_and_for_perplexity() {
        let check = |recall: Option<(f64, usize)>, perplexity: Option<f64>, expect: Option<(&str, &str)>| {
            let recall =
                recall.map(|(percent, right)| TaskLoss { percent, cases: 40, right, predicts: false });
            let text = perplexity.map(|percent| TaskLoss { percent, cases: 16, right: 0, predicts: true });
            let tasks = [("needles", recall), ("stories", text)].into_iter();
            let tasks = tasks.filter_map(|(task, loss)| Some((task.to_owned(), loss?))).collect();
            let (kv, retain) = ("f16".to_owned(), "vnorm:0.5".to_owned());
            let command = String::new();
            let mut losses = MeasuredLosses::default();
            losses.record(SettingLosses {
                kv,
                retain,
                question_seen: true,
                kept: 0.5,
                tasks,
                date: 0,
                command,
            });
            let bounded = Retaining { losses, ..retaining(Some(5.0)) };
            let error = choose(&bounded, "vnorm:0.5").err();
            let said = error.as_ref().map(ToString::to_string).unwrap_or_default();
            assert_eq!(error.as_ref().map(RetainRefusal::field), expect.map(|(field, _)| field), "{said}");
            assert!(expect.is_none_or(|(_, part)| said.contains(part)), "{said}");
            let best = choose(&bounded, "auto:5");
            assert_eq!(best.is_ok(), expect.is_none(), "auto takes what is allowed by name: {best:?}");
        };
        check(Some((1.0, 30)), Some(2.0), None);
        let ruined = "loses 11.1% of perplexity in stories (of recall -11.8%, with 30 right cases)";
        check(Some((-11.8, 30)), Some(11.1), Some(("keep", ruined)));
        let forgets = "loses 53.0% of recall in needles (of perplexity 2.5%, with 30 right cases)";
        check(Some((53.0, 30)), Some(2.5), Some(("keep", forgets)));
        check(Some((0.0, 30)), None, Some(("policy", "perplexity was not measured")));
        check(None, Some(0.0), Some(("policy", "recall was not measured")));
        check(Some((0.0, 19)), Some(0.0), Some(("policy", "at most 19 cases of a task")));
    }

    /// Losses measured with the question seen do not apply to a prefix, which is compressed before it.
    #[test]
    fn a_prefix_counts_what_is_lost_with_the_question_unseen() {
        let choose = |retaining: &Retaining, text: &str| {
            retaining
                .choose_for(Reach::Prefix, text.parse().unwrap())
                .map(|chosen| chosen.unwrap().to_string())
        };
        let any = retaining(None);
        let loss = |text: &str| any.loss(&text.parse().unwrap(), Reach::Prefix).map(|loss| loss.worst);
        assert_eq!((loss("keydiff:0.25"), loss("keydiff:0.1")), (None, Some(4.0)));
        assert_eq!(choose(&any, "auto:5"), Ok("keydiff:0.1".to_owned()));
        assert_eq!(choose(&any, "auto").unwrap_err().field(), "policy");
        let bounded = retaining(Some(5.0));
        assert_eq!(choose(&bounded, "keydiff:0.1"), Ok("keydiff:0.1".to_owned()));
        assert_eq!(choose(&bounded, "keydiff:0.25").unwrap_err().field(), "policy", "measured, and seen");
    }

    #[test]
    fn a_default_that_is_not_to_be_had_names_the_flag() {
        let new = |retain: &str, retain_max_loss| {
            let retain = Some(retain.parse().unwrap());
            let args = RetainArgs { retain, retain_max_loss, ..RetainArgs::default() };
            Retaining::new(&args, losses(), "f16")
        };
        assert_eq!(new("snapkv:0.2", None).unwrap().usual(), Some("snapkv:0.2".parse().unwrap()));
        assert_eq!(new("none", Some(1.0)).unwrap().usual(), None);
        for (retain, loss_max) in
            [("snapkv:0.2", Some(10.0)), ("snapkv:0.5", Some(10.0)), ("auto:0", Some(-1.0))]
        {
            let error = new(retain, loss_max).unwrap_err().to_string();
            assert!(error.starts_with("--retain: "), "{error}");
        }
    }
}
