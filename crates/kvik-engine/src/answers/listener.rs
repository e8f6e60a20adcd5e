//! Listens to a request's answers, and remembers them before its client learns that they have ended.

use std::sync::Arc;
use std::time::Duration;

use kvik_cache::Token;

use super::memory::GeneratedAnswers;
use crate::api::{Event, EventSink, Report, Request, Retokenised};

/// The sink of a request whose answers are remembered.
pub(crate) struct AnswerListener {
    sink: Box<dyn EventSink>,
    answers: Arc<GeneratedAnswers>,
    prompt: Retokenised,
    ttl: Option<Duration>,
    /// For each choice, the lead of the prompt and the tokens of the answer; empty once it was remembered.
    choices: Vec<Vec<Token>>,
}

impl AnswerListener {
    /// A sink before that of a request, if its prompt was noted by [`GeneratedAnswers::as_generated`].
    pub(crate) fn before(
        sink: Box<dyn EventSink>,
        request: &Request,
        answers: &Arc<GeneratedAnswers>,
    ) -> Box<dyn EventSink> {
        // A request that could not be noted keeps nothing after all.
        let Some(prompt) = request.retokenised.clone().filter(|_| request.reuse) else { return sink };
        let lead = request.prompt[request.prompt.len().saturating_sub(prompt.lead)..].to_vec();
        let choices = vec![lead; request.choices as usize];
        let (answers, ttl) = (answers.clone(), request.lifetime.ttl);
        answers.use_in(&prompt, ttl);
        Box::new(AnswerListener { sink, answers, prompt, ttl, choices })
    }

    fn ended(&mut self, choice: usize) {
        let tokens = self.choices.get_mut(choice).map(std::mem::take).unwrap_or_default();
        if tokens.len() > self.prompt.lead {
            self.answers.remember(&self.prompt, tokens, self.ttl);
        }
    }
}

impl EventSink for AnswerListener {
    fn send(&mut self, mut event: Event) -> bool {
        match &mut event {
            Event::Text { choice, tokens, .. } => {
                if let Some(all) = self.choices.get_mut(*choice as usize) {
                    all.extend(tokens.iter().map(|generated| generated.token));
                }
            }
            Event::Finished { choice, .. } => self.ended(*choice as usize),
            Event::Done(report) => report.retokenised = self.prompt.tokens,
            _ => {}
        }
        self.sink.send(event)
    }

    /// A client that has gone has read what there was until then, and may send it back.
    fn given_up(&mut self, report: &Report) {
        (0..self.choices.len()).for_each(|choice| self.ended(choice));
        self.sink.given_up(&Report { retokenised: self.prompt.tokens, ..report.clone() });
    }

    fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }
}
