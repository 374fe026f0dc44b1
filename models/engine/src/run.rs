//! The engine's loop: receives jobs, computes parts of their prompts, steps all jobs with complete prompts
//! together, sends events.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ntl_core::contract::{
    Adapter, BatchModel, CacheCost, ContextRequest, EngineError, Event, Interruption, Logits, ModelError,
    NodeId, PathRow, PrefillChunk, PrefillProgress, Prompt, Row, Uninterrupted,
};
use ntl_core::decoding::{Progress, StepResult, Vocabulary};

use crate::awake::awake;
use crate::budget::{EngineBudget, Pool};
use crate::channel::EventSender;
use crate::guard::guarded;
use crate::limits::EngineLimits;
use crate::observer::{EndReason, EngineObserver};
use crate::pace::Pace;
use crate::prefills::{Prefilling, Shares};
use crate::queue::{Admission, Admitted, DropReason, PreparedAdapter, Queue, QueuedJob};
use crate::running::{EarlyEnd, LastStep, Running, Share, collect_rows, stepping, update_stalls};

/// A computed prefill whose time is not recorded yet.
struct Prefill {
    began: Instant,
    /// The time of the call.
    time: Duration,
    work: usize,
    clients: HashSet<u64>,
    /// Whether other clients use the engine, too.
    is_shared: bool,
}

/// Serves other clients between the layers of a pass that began while only one client used the engine.
struct Newcomers<'a> {
    runner: &'a mut Runner,
    queue: &'a mut Queue,
    /// The time of their turns.
    time: Duration,
    /// When the last of their turns ended, or the pass began.
    since: Instant,
}

impl Interruption for Newcomers<'_> {
    fn is_due(&mut self) -> bool {
        self.queue.receive(false, None);
        self.runner.has_newcomers(self.queue)
    }

    fn serve(&mut self, model: &mut dyn BatchModel) {
        let began = Instant::now();
        self.runner.pace.pay(began - self.since);
        self.runner.turn(model, self.queue);
        // If no step has waited for it.
        self.runner.settle_prefill(model);
        self.since = Instant::now();
        self.time += self.since - began;
    }
}

pub(crate) struct Runner {
    vocabulary: Vocabulary,
    limits: EngineLimits,
    memory: EngineBudget,
    observer: Arc<dyn EngineObserver>,
    prefilling: Vec<Prefilling>,
    running: Vec<Running>,
    pace: Pace,
    /// The last prefill, if a device may still compute it.
    last_prefill: Option<Prefill>,
    prefills: u64,
    steps: u64,
    /// The client of a queued job for whose memory the engine waits.
    lacks_memory: Option<u64>,
    /// The client whose pass is interrupted. The rest of its work waits until the pass is complete.
    interrupted: Option<u64>,
    /// Why the device was lost, once it is.
    lost: Arc<OnceLock<String>>,
}

impl Runner {
    pub(crate) fn new(
        vocabulary: Vocabulary,
        limits: EngineLimits,
        memory: EngineBudget,
        observer: Arc<dyn EngineObserver>,
        lost: Arc<OnceLock<String>>,
    ) -> Self {
        Self {
            vocabulary,
            limits,
            memory,
            observer,
            prefilling: Vec::new(),
            running: Vec::new(),
            pace: Pace::default(),
            last_prefill: None,
            prefills: 0,
            steps: 0,
            lacks_memory: None,
            interrupted: None,
            lost,
        }
    }

    pub(crate) fn run(mut self, mut model: Box<dyn BatchModel>, mut queue: Queue) {
        let model = &mut *model;
        // Stalled jobs are not stepped, so the loop may have nothing to do although jobs are running.
        let mut idle = true;
        while queue.receive(idle, self.next_deadline(&queue)) {
            for PreparedAdapter { adapter, result } in queue.take_adapters() {
                // The caller may have stopped.
                let _ = result.send(self.prepare(model, &adapter));
            }
            let busy = self.turn(model, &mut queue);
            if let Some(reason) = self.lost.get().cloned() {
                self.end_all(model, &EngineError::DeviceLost(reason), &mut queue);
                break;
            }
            idle = !busy && self.prefilling.is_empty();
        }
        self.end_dropped(model, &mut queue);
        self.report(&queue);
    }

    /// Opens a context with an adapter, for which the model copies the weights to its device.
    fn prepare(&mut self, model: &mut dyn BatchModel, adapter: &Adapter) -> Result<(), EngineError> {
        let prompt = Prompt::from(vec![model.info().eos_ids.first().copied().unwrap_or(0)]);
        let request = ContextRequest { adapter: Some(adapter), ..(&prompt).into() };
        let opened = guarded(&*self.observer, || model.begin(request));
        let opened = opened.map_err(|error| self.failure(model, &error))?;
        model.close(opened.context);
        Ok(())
    }

    /// Ends, prefills and steps jobs. Returns `true` if there were any.
    fn turn(&mut self, model: &mut dyn BatchModel, queue: &mut Queue) -> bool {
        update_stalls(&mut self.running);
        let mut busy = self.end_dropped(model, queue);
        busy |= self.prefill(model, queue);
        self.report(queue);
        busy |= self.step(model, queue);
        self.report(queue);
        busy
    }

    /// Returns whether a client other than the interrupted one has jobs.
    fn has_newcomers(&self, queue: &Queue) -> bool {
        self.active_clients(queue).any(|client| !self.is_interrupted(client))
    }

    /// Returns whether a pass of this client is interrupted.
    fn is_interrupted(&self, client: u64) -> bool {
        self.interrupted == Some(client)
    }

    /// Computes a pass of these clients. If there is only one, serves the clients that come meanwhile.
    /// Returns the time that these took as well.
    fn pass<T>(
        &mut self,
        model: &mut dyn BatchModel,
        queue: &mut Queue,
        clients: &HashSet<u64>,
        compute: impl FnOnce(&mut dyn BatchModel, &mut dyn Interruption) -> Result<T, ModelError>,
    ) -> (Result<T, ModelError>, Duration) {
        let observer = Arc::clone(&self.observer);
        if self.interrupted.is_some() || clients.len() > 1 {
            let computed =
                guarded(&*observer, || with_pool(model, |model| compute(model, &mut Uninterrupted)));
            return (computed, Duration::ZERO);
        }
        self.interrupted = clients.iter().next().copied();
        let mut newcomers = Newcomers { runner: self, queue, time: Duration::ZERO, since: Instant::now() };
        let computed = guarded(&*observer, || with_pool(model, |model| compute(model, &mut newcomers)));
        let time = newcomers.time;
        self.interrupted = None;
        (computed, time)
    }

    /// Ends all jobs with the same error.
    fn end_all(&mut self, model: &mut dyn BatchModel, error: &EngineError, queue: &mut Queue) {
        let running = std::mem::take(&mut self.running).into_iter();
        let running: Vec<_> =
            running.map(|job| (job.context, job.unfinished, job.queued_job, job.memory)).collect();
        let prefilling = std::mem::take(&mut self.prefilling).into_iter().map(|job| {
            let sequences = job.queued_job.job.request.sequences();
            (job.context, sequences, job.queued_job, job.memory)
        });
        for (context, sequences, queued_job, memory) in running.into_iter().chain(prefilling) {
            model.close(context);
            drop(memory);
            self.fail(&queued_job.events, error.clone(), sequences);
        }
        for queued_job in queue.take_all() {
            self.fail(&queued_job.events, error.clone(), queued_job.job.request.sequences());
        }
    }

    /// Returns the error of the requests of a failed call, after checking whether the device still computes.
    /// If so, evicts all prefixes, because later calls would fail as well if these fill the device's memory.
    fn failure(&mut self, model: &mut dyn BatchModel, error: &ModelError) -> EngineError {
        let Err(lost) = guarded(&*self.observer, || model.check_device()) else {
            if let Some(prefixes) = model.evictable_cache() {
                prefixes.evict(u64::MAX);
            }
            return step_error(error);
        };
        let reason = chain(&lost);
        tracing::error!(reason, "the device is lost");
        EngineError::DeviceLost(self.lost.get_or_init(|| reason).clone())
    }

    fn report(&self, queue: &Queue) {
        let running: usize = self.running.iter().map(|job| job.unfinished as usize).sum();
        let prefilling = self.prefilling.iter().map(|job| job.queued_job.job.request.sequences() as usize);
        self.observer.on_load(queue.sequences(), running + prefilling.sum::<usize>());
    }

    /// Returns the earliest deadline of a queued or running job.
    fn next_deadline(&self, queue: &Queue) -> Option<Instant> {
        let running = self.running.iter().filter_map(|job| Some(job.queued_job.job.deadline?.0));
        let unread = self.running.iter().filter_map(|job| self.unread_deadline(job));
        running.chain(unread).chain(queue.next_deadline()).min()
    }

    /// Returns the time at which the client of a stalled job will have left its events unread for too long.
    fn unread_deadline(&self, job: &Running) -> Option<Instant> {
        job.stall.and_then(|stall| stall.since.checked_add(self.limits.unread_time_max))
    }

    /// Ends jobs whose client is gone or stalled for too long, or whose deadline has passed, except those
    /// whose pass is interrupted. Returns `true` if there were any.
    fn end_dropped(&mut self, model: &mut dyn BatchModel, queue: &mut Queue) -> bool {
        let now = Instant::now();
        let queued = queue.take_dropped(now);
        let mut any = !queued.is_empty();
        for (queued_job, reason) in queued {
            self.end_one(&queued_job.events, reason, queued_job.job.request.sequences());
        }
        for job in std::mem::take(&mut self.prefilling) {
            let reason =
                if self.is_interrupted(job.client()) { None } else { job.queued_job.drop_reason(now) };
            let Some(reason) = reason else {
                self.prefilling.push(job);
                continue;
            };
            any = true;
            model.close(job.context);
            let Prefilling { memory, queued_job, .. } = job;
            drop(memory);
            self.end_one(&queued_job.events, reason, queued_job.job.request.sequences());
        }
        let mut kept = Vec::with_capacity(self.running.len());
        for job in std::mem::take(&mut self.running) {
            let reason = if self.is_interrupted(job.client()) { None } else { self.drop_reason(&job, now) };
            let Some(reason) = reason else {
                kept.push(job);
                continue;
            };
            any = true;
            model.close(job.context);
            self.end_one(&job.queued_job.events, reason, job.unfinished);
        }
        self.running = kept;
        any
    }

    fn drop_reason(&self, job: &Running, now: Instant) -> Option<DropReason> {
        job.queued_job.drop_reason(now).or_else(|| {
            self.unread_deadline(job).filter(|&at| at <= now)?;
            let after_ms = u64::try_from(self.limits.unread_time_max.as_millis()).unwrap_or(u64::MAX);
            Some(DropReason::Unread(EngineError::Unread { after_ms }))
        })
    }

    /// Counts the end of a dropped job, and sends the error to the client if it is still connected.
    fn end_one(&self, events: &EventSender, reason: DropReason, sequences: u32) {
        let (error, end) = match reason {
            DropReason::ClientGone => (None, EndReason::Abort),
            DropReason::Unread(error) => (Some(error), EndReason::Abort),
            DropReason::DeadlineExceeded(error) => (Some(error), EndReason::Deadline),
        };
        if let Some(error) = error {
            // The client may drop its end at this moment. Then it does not need the error.
            events.send(Event::Failed(error));
        }
        self.count(end, sequences);
    }

    /// Returns the clients that use the engine or wait for it.
    fn clients(&self, queue: &Queue) -> HashSet<u64> {
        self.active_clients(queue).collect()
    }

    /// Like [`Self::clients`], but a client with several jobs may appear several times.
    fn active_clients(&self, queue: &Queue) -> impl Iterator<Item = u64> {
        let prefilling = self.prefilling.iter().map(Prefilling::client);
        stepping(&self.running).chain(prefilling).chain(queue.clients())
    }

    /// Starts jobs, and computes a part of their prompts and of earlier ones. Returns `true` if there were
    /// any.
    fn prefill(&mut self, model: &mut dyn BatchModel, queue: &mut Queue) -> bool {
        // If no step has waited for it. Otherwise prefills without a known time would pile up on a device.
        self.settle_prefill(model);
        let clients = self.clients(queue);
        let is_shared = clients.len() > 1;
        let work_max = model.prefill_tokens_max();
        let work = self.pace.prefill_work_max(clients.len(), self.limits.prefill_time_max, work_max);
        let owes_steps = is_shared && stepping(&self.running).next().is_some();
        let mut debtors = if owes_steps { self.pace.debtors().clone() } else { HashSet::new() };
        debtors.extend(self.interrupted);
        let shares = Shares::new(&self.prefilling, queue.clients(), debtors, work);
        let first_new = self.prefilling.len();
        let mut any = self.begin_jobs(model, queue, &shares);
        let chunks = shares.chunks(&self.prefilling, first_new);
        if !chunks.is_empty() {
            any = true;
            self.compute(model, queue, &chunks, &clients);
            // The model keeps prefixes for later prompts.
            self.memory.settle();
        }
        for job in std::mem::take(&mut self.prefilling) {
            if job.progress.work_left == 0 { self.start(model, job) } else { self.prefilling.push(job) }
        }
        any
    }

    /// Begins queued jobs until their prompts use up the work for new jobs. Returns `true` if there were any.
    fn begin_jobs(&mut self, model: &mut dyn BatchModel, queue: &mut Queue, shares: &Shares) -> bool {
        let first_new = self.prefilling.len();
        let mut left = shares.new_jobs;
        let mut admits_longer = shares.admits_longer;
        let mut lacks_memory = None;
        let mut any = false;
        loop {
            let mut admission = self.admission(shares, left, admits_longer);
            let admitted = queue.admit(&mut admission);
            lacks_memory = admission.lacks_memory.or(lacks_memory);
            if admitted.is_empty() {
                break;
            }
            any = true;
            for admitted in admitted {
                self.begin(model, admitted);
            }
            // How much of a prompt is cached is known only now. The next one may begin with the same tokens.
            // Then the work that is left may be enough for it, even if it is long.
            let begun = &self.prefilling[first_new..];
            let work: usize = begun.iter().map(|job| job.progress.work_left).sum();
            left = shares.new_jobs.saturating_sub(work);
            admits_longer = begun.iter().any(|job| job.progress.cached_tokens > 0);
        }
        self.lacks_memory = match (lacks_memory, self.lacks_memory) {
            // No memory is reserved for a barred client, so it still waits.
            (None, Some(client))
                if !any
                    && shares.barred.contains(&client)
                    && queue.clients().any(|queued| queued == client) =>
            {
                Some(client)
            }
            (lacking, _) => lacking,
        };
        if self.lacks_memory.is_none() {
            self.memory.stop_waiting();
        }
        any
    }

    /// Returns the resources that the next jobs can use. `left`: the work that is left for them.
    fn admission<'a>(&'a self, shares: &'a Shares, left: usize, admits_longer: bool) -> Admission<'a> {
        let reserved = self.limits.running_max / 4;
        let general = self.limits.running_max - reserved;
        let running = self.running.iter().map(Running::client);
        Admission {
            memory: &self.memory,
            running: running.chain(self.prefilling.iter().map(Prefilling::client)).collect(),
            barred: &shares.barred,
            admits_longer,
            general: general.saturating_sub(self.sequences_in(Pool::General)),
            reserved: reserved.saturating_sub(self.sequences_in(Pool::Reserved)),
            sequences_max: general,
            prefill_work: left,
            lacks_memory: None,
        }
    }

    /// Returns the number of sequences of the jobs whose memory is in a pool.
    fn sequences_in(&self, pool: Pool) -> usize {
        let running = self.running.iter().filter(|job| job.memory.pool() == pool);
        let prefilling = self.prefilling.iter().filter(|job| job.memory.pool() == pool);
        running.map(Running::counted_sequences).sum::<usize>()
            + prefilling.map(|job| job.sequences).sum::<usize>()
    }

    /// Opens the context of a job.
    fn begin(&mut self, model: &mut dyn BatchModel, admitted: Admitted) {
        let Admitted { mut queued_job, memory, sequences } = admitted;
        queued_job.permit = None;
        if queued_job.sent.is_none() {
            self.observer.on_start(queued_job.queued.elapsed());
        }
        let job = &queued_job.job;
        let prompt = job.prefilled_prompt();
        let prompt_tokens = prompt.len();
        let request = ContextRequest {
            prompt: &prompt,
            paper_decoding: job.paper_decoding,
            cache_salt: job.cache_salt,
            adapter: job.adapter.as_ref(),
            pooling: job.request.encoder_pooling(),
        };
        let opened = guarded(&*self.observer, || model.begin(request));
        drop(prompt);
        match opened {
            Ok(opened) => self.prefilling.push(Prefilling {
                memory,
                queued_job,
                context: opened.context,
                first_token: opened.first_token,
                sequences,
                prompt_tokens,
                progress: opened.prefill,
                last: 0,
            }),
            Err(error) => {
                tracing::error!(error = %chain(&error), "a prompt was not opened");
                drop(memory);
                let sequences = queued_job.job.request.sequences();
                let error = self.failure(model, &error);
                self.fail(&queued_job.events, error, sequences);
            }
        }
    }

    /// Computes parts of prompts, while these clients use the engine.
    fn compute(
        &mut self,
        model: &mut dyn BatchModel,
        queue: &mut Queue,
        chunks: &[PrefillChunk],
        users: &HashSet<u64>,
    ) {
        self.prefills += 1;
        let prefill = self.prefills;
        let work: usize = chunks.iter().map(|chunk| chunk.work).sum();
        let span = tracing::debug_span!("prefill", batch.prompts = chunks.len(), batch.work = work);
        let began = Instant::now();
        let (computed, others_time) = span.in_scope(|| {
            self.pass(model, queue, users, |model, interruption| prefill_all(model, chunks, interruption))
        });
        let time = began.elapsed().saturating_sub(others_time);
        let of: BTreeMap<_, _> = (0..).zip(chunks).map(|(index, chunk)| (chunk.context, index)).collect();
        let concerned = self.prefilling.iter().filter(|job| of.contains_key(&job.context));
        let clients = concerned.map(Prefilling::client).collect();
        let is_shared = users.len() > 1;
        match computed {
            Ok(progress) => {
                let work = progress.iter().map(|progress| progress.work_done).sum();
                if others_time.is_zero() {
                    self.last_prefill = Some(Prefill { began, time, work, clients, is_shared });
                } else {
                    // The other clients were served meanwhile, so that it owes them no steps.
                    self.pace.measure_prefill(work, time);
                }
                for job in &mut self.prefilling {
                    if let Some(&index) = of.get(&job.context) {
                        job.progress = progress[index];
                        job.last = prefill;
                    }
                }
            }
            Err(error) => {
                tracing::error!(error = %chain(&error), "prefill of a batch of prompts failed");
                if others_time.is_zero() {
                    self.pace.prefilled(0, time, clients, is_shared);
                }
                let error = self.failure(model, &error);
                for job in std::mem::take(&mut self.prefilling) {
                    if !of.contains_key(&job.context) {
                        self.prefilling.push(job);
                        continue;
                    }
                    model.close(job.context);
                    let Prefilling { memory, queued_job, .. } = job;
                    drop(memory);
                    let sequences = queued_job.job.request.sequences();
                    self.fail(&queued_job.events, error.clone(), sequences);
                }
            }
        }
    }

    /// Records the time of the last prefill. Returns when its computation ended.
    fn settle_prefill(&mut self, model: &mut dyn BatchModel) -> Option<Instant> {
        let Prefill { began, time, work, clients, is_shared } = self.last_prefill.take()?;
        let time = model.prefill_time().unwrap_or(time);
        self.pace.prefilled(work, time, clients, is_shared);
        Some(began + time)
    }

    /// Starts the decoding of a job with a complete prompt.
    fn start(&mut self, model: &mut dyn BatchModel, job: Prefilling) {
        let Prefilling {
            memory, queued_job, context, first_token, sequences, prompt_tokens, progress, ..
        } = job;
        let job = &queued_job.job;
        let cached = progress.cached_tokens;
        self.observer.on_open(cached, prompt_tokens.saturating_sub(cached));
        let before: Vec<u32> =
            if model.info().encoder_decoder { Vec::new() } else { job.prompt.ids().collect() };
        let decoding = guarded(&*self.observer, || {
            Ok::<_, EngineError>(self.vocabulary.decoding(&job.request, &before, first_token))
        });
        let unfinished = job.request.sequences();
        match decoding {
            Ok(decoding) => self.running.push(Running {
                context,
                decoding,
                memory,
                prompt_tokens,
                nodes: 0,
                unfinished,
                sequences,
                events_skipped: queued_job.sent.unwrap_or(0),
                events: 0,
                stall: None,
                last_step: LastStep::default(),
                last_tokens: BTreeMap::new(),
                end: None,
                queued_job,
            }),
            Err(error) => {
                model.close(context);
                drop(memory);
                self.fail(&queued_job.events, error, unfinished);
            }
        }
    }

    /// Steps all jobs that are not stalled, except those whose pass is interrupted. Returns `true` if there
    /// were any.
    fn step(&mut self, model: &mut dyn BatchModel, queue: &mut Queue) -> bool {
        self.steps += 1;
        let clients = self.clients(queue);
        let rows_max = self.limits.step_rows_max;
        let rows_max = if clients.len() > 1 {
            self.pace.rows_max(clients.len(), rows_max)
        } else {
            self.pace.rows_max_alone(self.limits.prefill_time_max, rows_max)
        };
        let cost = model.cache_cost();
        let observer = Arc::clone(&self.observer);
        let (rows, shares) =
            collect_rows(&mut self.running, rows_max, self.steps, self.interrupted, |job, rows_max| {
                match next_rows(job, rows_max, cost, &*observer) {
                    Ok(rows) => Some(rows),
                    Err(end) => {
                        job.end = Some(end);
                        None
                    }
                }
            });
        let mut over: Vec<usize> = Vec::new();
        if !rows.is_empty() {
            let span = tracing::debug_span!("step", batch.rows = rows.len(), batch.jobs = shares.len());
            let began = Instant::now();
            let (logits, others_time) = span.in_scope(|| {
                self.pass(model, queue, &clients, |model, interruption| step_all(model, &rows, interruption))
            });
            let ended = Instant::now();
            // A step on a device begins when the prefill before it has ended.
            let began = self.settle_prefill(model).map_or(began, |prefilled| prefilled.max(began));
            let measured = if model.step_was_partial() { None } else { Some(rows.len()) };
            let time = ended.saturating_duration_since(began).saturating_sub(others_time);
            self.pace.measure_step(measured, time);
            if others_time.is_zero() {
                self.pace.pay(time);
            }
            self.observer.on_step(rows.len());
            over = match logits {
                Ok(logits) => self.distribute(&logits, &shares),
                Err(error) => {
                    tracing::error!(error = %chain(&error), "a step failed");
                    let error = self.failure(model, &error);
                    for share in &shares {
                        if let Some(index) = self.index_of(share) {
                            self.running[index].end = Some(EarlyEnd::Failed(error.clone()));
                        }
                    }
                    Vec::new()
                }
            };
        }
        over.extend((0..self.running.len()).filter(|&index| self.running[index].end.is_some()));
        let any = !(rows.is_empty() && over.is_empty());
        self.end_jobs(model, queue, over, cost);
        any
    }

    /// Removes the running jobs at these indices. Those whose memory is full return to the queue.
    fn end_jobs(
        &mut self,
        model: &mut dyn BatchModel,
        queue: &mut Queue,
        mut indices: Vec<usize>,
        cost: CacheCost,
    ) {
        // In descending order, so that earlier indices stay valid.
        indices.sort_unstable_by(|a, b| b.cmp(a));
        for index in indices {
            let mut job = self.running.remove(index);
            model.close(job.context);
            match job.end.take() {
                None => {}
                Some(EarlyEnd::Failed(error)) => self.fail(&job.queued_job.events, error, job.unfinished),
                Some(EarlyEnd::OutOfMemory) => queue.push_front(restarted(job, cost)),
            }
        }
    }

    /// Returns the index of a running job. Others may have ended during the step.
    fn index_of(&self, share: &Share) -> Option<usize> {
        self.running.iter().position(|job| job.context == share.context)
    }

    /// Passes the logits to their jobs. Returns the indices of the completed jobs.
    fn distribute(&mut self, logits: &Logits, shares: &[Share]) -> Vec<usize> {
        let mut finished = Vec::new();
        for share in shares {
            let Some(index) = self.index_of(share) else { continue };
            let job = &mut self.running[index];
            let result = StepResult { logits, first_row: share.first_row, first_node: NodeId(job.nodes) };
            job.nodes += share.rows as u32;
            let mut events = Vec::new();
            let advanced = guarded(&*self.observer, || job.decoding.advance(result, &mut events));
            match advanced {
                Ok(Progress::Running) => {}
                Ok(Progress::Done) => finished.push(index),
                Err(error) => {
                    tracing::error!(%error, "decoding failed");
                    job.end = Some(EarlyEnd::Failed(error));
                }
            }
            self.send(index, events);
        }
        finished
    }

    fn send(&mut self, running: usize, events: Vec<Event>) {
        for event in events {
            let job = &mut self.running[running];
            job.events += 1;
            if job.events <= job.events_skipped {
                continue;
            }
            if let Event::Text { choice, tokens, .. } = event {
                self.observe_tokens(running, choice, tokens);
            }
            let job = &mut self.running[running];
            // Counted before the event is sent, so that a client with the response finds it in the metrics.
            if let Some(reason) = end_reason(&event)
                && !job.queued_job.events.is_closed()
            {
                job.unfinished = job.unfinished.saturating_sub(1);
                self.count(reason, 1);
            }
            if !self.running[running].queued_job.events.send(event) {
                // The client is gone. The engine ends the job, and counts it as aborted, before the next
                // step.
                return;
            }
        }
    }

    /// Reports the time between tokens of one text.
    fn observe_tokens(&mut self, running: usize, choice: u32, tokens: usize) {
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        if let Some(last) = self.running[running].last_tokens.insert(choice, now) {
            self.observer.on_tokens(tokens, now - last);
        }
    }

    fn fail(&self, events: &EventSender, error: EngineError, sequences: u32) {
        let sent = events.send(Event::Failed(error));
        self.count(if sent { EndReason::Error } else { EndReason::Abort }, sequences);
    }

    fn count(&self, reason: EndReason, sequences: u32) {
        for _ in 0..sequences {
            self.observer.on_end(reason);
        }
    }
}

/// Calls `compute`. The threads of the pool stay awake meanwhile if the model uses them.
fn with_pool<T>(model: &mut dyn BatchModel, compute: impl FnOnce(&mut dyn BatchModel) -> T) -> T {
    if model.uses_pool() { awake(|| compute(model)) } else { compute(model) }
}

/// Computes chunks, and checks that there is progress for each.
fn prefill_all(
    model: &mut dyn BatchModel,
    chunks: &[PrefillChunk],
    interruption: &mut dyn Interruption,
) -> Result<Vec<PrefillProgress>, ModelError> {
    let progress = model.prefill_interruptibly(chunks, interruption)?;
    if progress.len() == chunks.len() {
        return Ok(progress);
    }
    Err(ModelError::Compute(format!("{} of {} prompts were computed", progress.len(), chunks.len()).into()))
}

/// Steps rows, and checks that there are logits for every row.
fn step_all(
    model: &mut dyn BatchModel,
    rows: &[Row],
    interruption: &mut dyn Interruption,
) -> Result<Logits, ModelError> {
    let logits = model.step_interruptibly(rows, interruption)?;
    if logits.rows() == rows.len() {
        return Ok(logits);
    }
    Err(ModelError::Compute(format!("{} of {} rows have logits", logits.rows(), rows.len()).into()))
}

/// Returns at most `rows` rows of a job, with memory for them.
fn next_rows(
    job: &mut Running,
    rows: usize,
    cost: CacheCost,
    observer: &dyn EngineObserver,
) -> Result<Vec<PathRow>, EarlyEnd> {
    let paths = guarded(observer, || Ok::<_, EngineError>(job.decoding.next_rows(rows)));
    let paths = paths.map_err(EarlyEnd::Failed)?;
    let search = job.decoding.search_bytes() as u64;
    let needs = cost.bytes(job.prompt_tokens, job.nodes as usize + paths.len()).saturating_add(search);
    // A restarted job has reserved everything that it may need, except for prefixes that it computes ahead.
    if job.memory.grow(needs) || job.queued_job.sent.is_some() {
        Ok(paths)
    } else {
        Err(EarlyEnd::OutOfMemory)
    }
}

/// Returns the queued_job of a preempted job, which will reserve all memory that it may need before it
/// restarts.
fn restarted(job: Running, cost: CacheCost) -> Box<QueuedJob> {
    tracing::debug!(
        nodes = job.nodes,
        "a number tree is preempted and will be restarted: the memory is full"
    );
    let mut queued_job = job.queued_job;
    let nodes = queued_job.job.nodes_max();
    let host = queued_job.job.host_bytes(nodes);
    queued_job.cache_bytes = cost.bytes(job.prompt_tokens, nodes).saturating_add(host);
    queued_job.sent = Some(job.events);
    queued_job
}

fn end_reason(event: &Event) -> Option<EndReason> {
    match event {
        Event::Prompt(_) | Event::Text { .. } | Event::Field(_) => None,
        Event::Finished { reason, .. } => Some((*reason).into()),
        Event::Number(outcome) => Some(outcome.first_text_end.map_or(EndReason::Stop, EndReason::from)),
        Event::Scored(_) | Event::Options(_) | Event::Values(_) => Some(EndReason::Stop),
        Event::Failed(_) => Some(EndReason::Error),
    }
}

fn step_error(error: &ModelError) -> EngineError {
    EngineError::Step(chain(error))
}

/// Returns an error with all its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

#[cfg(test)]
mod tests {
    use ntl_core::contract::{ContextId, Job, NodeCapacity, Request, TextJob};
    use ntl_core::decoding::Decoding;

    use super::*;
    use crate::budget::CacheBudget;
    use crate::channel::channel;
    use crate::observer::NoObserver;

    /// Returns as many rows of the end-of-sequence token as requested; panics if none are requested.
    struct Rows;

    impl Decoding for Rows {
        fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
            assert!(rows_max > 0, "scripted");
            vec![PathRow::new(None, 1); rows_max]
        }
        fn advance(&mut self, _: StepResult<'_>, _: &mut Vec<Event>) -> Result<Progress, EngineError> {
            Ok(Progress::Done)
        }
        fn search_bytes(&self) -> usize {
            5
        }
    }

    #[test]
    fn a_job_ends_if_requesting_its_rows_panics_or_their_memory_is_missing() {
        let cost = CacheCost { prompt_token: 1, node: 10, capacity: NodeCapacity::Exact };
        let budget = CacheBudget::new(100).join(None, || ());
        let (events, _receiver) = channel(|| ());
        let queued_job = Box::new(QueuedJob {
            job: Job::new(vec![1], Request::Text(TextJob::default())),
            events,
            queued: Instant::now(),
            cache_bytes: 6,
            request_begun: Arc::default(),
            permit: None,
            sent: None,
        });
        let mut job = Running {
            memory: budget.reserve(Pool::General, 6).unwrap(),
            queued_job,
            context: ContextId(1),
            decoding: Box::new(Rows),
            prompt_tokens: 1,
            nodes: 0,
            unfinished: 1,
            sequences: 1,
            events_skipped: 0,
            events: 0,
            stall: None,
            last_step: LastStep::default(),
            last_tokens: BTreeMap::new(),
            end: None,
        };
        let mut asked = |rows| next_rows(&mut job, rows, cost, &NoObserver).map(|rows| rows.len());
        assert!(matches!(asked(6), Ok(6)), "66 of the 75 bytes in the general pool");
        assert!(matches!(asked(7), Err(EarlyEnd::OutOfMemory)));
        let Err(EarlyEnd::Failed(EngineError::Step(reason))) = asked(0) else { panic!("no panic") };
        assert_eq!(reason, "the decoding panicked");
    }
}
