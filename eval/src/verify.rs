//! Ranks candidate answers by the judged comparisons of a finished run.
//!
//! In: the tournaments of `verify`, and the directory of their run. Out: `rankings.jsonl` there, with a line
//! for each question, and a summary.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::error::OutputError;
use crate::format::{count, number};
use crate::settings::number::RatingScale;
use crate::store::sample::Sample;
use crate::store::saved::{Run, write_page};
use crate::tasks::judge::verify::Tournament;

/// Rounds after which ratings that still change are good enough: far more than they need.
const ROUNDS_MAX: usize = 10_000;

#[derive(Debug, Serialize)]
struct Ranking<'a> {
    input: &'a str,
    /// The answer with the highest rating.
    best: &'a str,
    /// The numbers of the candidates, the best one first.
    ranking: Vec<usize>,
    /// The rating of each candidate. Its mean over the different answers is 0, and a difference of two
    /// ratings is an expected margin: 1 means that one answer is always far better.
    ratings: Vec<f64>,
    comparisons: usize,
    /// Number of scores that the judge did not give.
    missing: usize,
}

/// The margin by which the first answer of a pair is better, from -1 to 1.
struct Margin {
    pair: [usize; 2],
    margin: f64,
}

/// Mean quality over the questions whose candidates have a known one.
#[derive(Default)]
struct Quality {
    questions: usize,
    picked: f64,
    all: f64,
    best: f64,
}

/// Writes the rankings into the directory of the run, and prints a summary unless `out` is missing.
pub fn write(
    tournaments: &[Tournament],
    criteria: usize,
    scale: RatingScale,
    folder: &Path,
    out: Option<&mut dyn Write>,
) -> anyhow::Result<()> {
    let run = Run::load(folder)?;
    let pairs: usize = tournaments.iter().map(|tournament| tournament.pairs.len()).sum();
    ensure!(run.samples.len() == pairs * criteria, "{} holds another run", folder.display());
    let mut samples = run.samples.as_slice();
    let mut lines = String::new();
    let mut quality = Quality::default();
    for tournament in tournaments {
        let (own, rest) = samples.split_at(tournament.pairs.len() * criteria);
        samples = rest;
        let Some(ranking) = rank(tournament, own, scale) else { continue };
        quality.add(tournament, ranking.ranking[0]);
        lines += &serde_json::to_string(&ranking).context("could not write a ranking")?;
        lines.push('\n');
    }
    let file = folder.join("rankings.jsonl");
    write_page(file.clone(), &lines)?;
    if let Some(out) = out {
        quality.print(out).map_err(OutputError)?;
        writeln!(out, "{}", file.display()).map_err(OutputError)?;
    }
    Ok(())
}

/// `samples`: the comparisons, with one sample per criterion each. `None` without candidates.
fn rank<'a>(tournament: &'a Tournament, samples: &[Sample], scale: RatingScale) -> Option<Ranking<'a>> {
    let ends = scale.ends();
    let (middle, half) = (f64::midpoint(ends.low, ends.high), (ends.high - ends.low) / 2.0);
    let criteria = samples.len() / tournament.pairs.len().max(1);
    let mut margins = Vec::with_capacity(samples.len());
    for (index, sample) in samples.iter().enumerate() {
        if let Some(score) = sample.score("score") {
            // Low scores favour the first answer.
            margins
                .push(Margin { pair: tournament.pairs[index / criteria], margin: (middle - score) / half });
        }
    }
    let of_answers = ratings(tournament.answers.len(), &margins);
    let ratings: Vec<f64> = tournament.candidates.iter().map(|place| of_answers[*place]).collect();
    let mut ranking: Vec<usize> = (0..ratings.len()).collect();
    ranking.sort_by(|a, b| ratings[*b].total_cmp(&ratings[*a]));
    let best = *ranking.first()?;
    Some(Ranking {
        input: &tournament.input,
        best: &tournament.answers[tournament.candidates[best]],
        ranking,
        ratings,
        comparisons: tournament.pairs.len(),
        missing: samples.len() - margins.len(),
    })
}

/// Returns the ratings whose differences are closest to the margins (least squares, Massey 1997), by
/// Gauss-Seidel iteration. Answers that no margins connect cannot be compared.
fn ratings(answers: usize, margins: &[Margin]) -> Vec<f64> {
    let mut against: Vec<Vec<(usize, f64)>> = vec![Vec::new(); answers];
    for Margin { pair: [a, b], margin } in margins {
        against[*a].push((*b, *margin));
        against[*b].push((*a, -margin));
    }
    let mut ratings = vec![0.0_f64; answers];
    for _ in 0..ROUNDS_MAX {
        let mut change = 0.0_f64;
        for (answer, met) in against.iter().enumerate() {
            if !met.is_empty() {
                let sum: f64 = met.iter().map(|(other, margin)| ratings[*other] + margin).sum();
                let rating = sum / met.len() as f64;
                change = change.max((rating - ratings[answer]).abs());
                ratings[answer] = rating;
            }
        }
        if change < 1e-12 {
            break;
        }
    }
    let mean = ratings.iter().sum::<f64>() / answers.max(1) as f64;
    ratings.iter_mut().for_each(|rating| *rating -= mean);
    ratings
}

impl Quality {
    fn add(&mut self, Tournament { quality, .. }: &Tournament, picked: usize) {
        if let Some(picked) = quality.get(picked) {
            self.questions += 1;
            self.picked += picked;
            self.all += quality.iter().sum::<f64>() / quality.len() as f64;
            self.best += quality.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        }
    }

    fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if self.questions == 0 {
            return Ok(());
        }
        let [picked, all, best] =
            [self.picked, self.all, self.best].map(|sum| number(sum / self.questions as f64));
        writeln!(
            out,
            "quality over {} questions: {picked} of the best-rated answers, {all} of all, {best} of the best ones",
            count(self.questions)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratings_are_the_least_squares_solution() {
        let margin = |a, b, margin| Margin { pair: [a, b], margin };
        // A path has an exact solution, and a contradiction in a circle is shared by its three margins.
        let path = ratings(4, &[margin(0, 1, 0.5), margin(2, 1, 0.25), margin(3, 2, 0.5)]);
        let differences = [path[0] - path[1], path[2] - path[1], path[3] - path[2]];
        assert!(differences.iter().zip([0.5, 0.25, 0.5]).all(|(a, b)| (a - b).abs() < 1e-9), "{path:?}");
        assert!(path.iter().sum::<f64>().abs() < 1e-9, "{path:?}");
        let circle = ratings(3, &[margin(0, 1, 0.3), margin(1, 2, 0.3), margin(2, 0, 0.3)]);
        assert!(circle.iter().all(|rating| rating.abs() < 1e-9), "{circle:?}");
        assert_eq!(ratings(2, &[]), [0.0, 0.0]);
    }
}
