// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The live view of `watch` on a terminal.
//!
//! Invariant: the terminal is restored in every case, also after a panic. Pausing stops only the display: samples
//! are still taken, because a longer interval would be another measurement.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Result;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, RenderDirection, Row, Sparkline, Table};
use ratatui::{DefaultTerminal, Frame};

use super::sample::{Address, Sample};
use super::session::{Next, Session};
use crate::output::{bytes, grouped, tail};

/// The number of rates for the sparkline; wider terminals are rare.
const HISTORY: usize = 512;

/// Columns of the terminal for the table without a mapping's name.
const BEFORE_NAME: usize = 10 + 12 + 10 + 25 + 4 + 2;

/// The order of the mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Rate,
    Total,
    Address,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Order::Rate => Order::Total,
            Order::Total => Order::Address,
            Order::Address => Order::Rate,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Order::Rate => "rate",
            Order::Total => "total",
            Order::Address => "address",
        }
    }
}

/// A mapping's figures so far.
#[derive(Debug, Clone, Default)]
struct Written {
    end: usize,
    /// Pages a second in the last interval.
    rate: f64,
    assumed: u64,
    total: u64,
}

/// What is on the screen.
#[derive(Debug, Clone)]
struct Screen {
    title: String,
    window: Duration,
    last: Option<Sample>,
    /// The newest first.
    rates: VecDeque<u64>,
    mappings: BTreeMap<(Address, String), Written>,
}

impl Screen {
    fn take(&mut self, sample: &Sample) {
        self.rates.push_front(sample.rate().round() as u64);
        self.rates.truncate(HISTORY);
        for written in self.mappings.values_mut() {
            (written.rate, written.assumed) = (0.0, 0);
        }
        for mapping in &sample.mappings {
            let written = self.mappings.entry((mapping.start, mapping.name.clone())).or_default();
            written.end = mapping.end.0;
            written.rate = mapping.written as f64 / sample.seconds;
            written.assumed = mapping.assumed;
            written.total += mapping.written;
        }
        self.last = Some(sample.clone());
    }

    fn ordered(&self, order: Order) -> Vec<(&(Address, String), &Written)> {
        let mut rows: Vec<_> = self.mappings.iter().collect(); // by address
        match order {
            Order::Rate => rows.sort_by(|a, b| b.1.rate.total_cmp(&a.1.rate).then(b.1.total.cmp(&a.1.total))),
            Order::Total => rows.sort_by_key(|(_, written)| std::cmp::Reverse(written.total)),
            Order::Address => {}
        }
        rows
    }
}

/// Show samples until the end; returns the last sample.
///
/// # Errors
/// Those of the session and of the terminal.
pub fn run(session: &mut Session, window: Duration) -> Result<Option<Sample>> {
    let mut terminal = ratatui::try_init()?;
    let result = watch(&mut terminal, session, window);
    if ratatui::try_restore().is_err() {
        // It is gone. Its drop would complain on a standard error that is gone as well, and panic.
        std::mem::forget(terminal);
        // That ends the view as SIGHUP does, which comes with it, before or after the first error.
        return result.or(Ok(None));
    }
    result
}

fn watch(terminal: &mut DefaultTerminal, session: &mut Session, window: Duration) -> Result<Option<Sample>> {
    let title = format!(" {} ({}), back end {} ", session.pid, session.command, session.backend());
    let mut now = Screen { title, window, last: None, rates: VecDeque::new(), mappings: BTreeMap::new() };
    let mut paused: Option<Screen> = None;
    let mut order = Order::Rate;
    let keys = std::io::stdin();
    loop {
        terminal.draw(|frame| draw(frame, paused.as_ref().unwrap_or(&now), order, paused.is_some()))?;
        match session.wait(Some(keys.as_fd()))? {
            Next::Stop => return Ok(now.last),
            Next::Sample => {
                let sample = session.sample()?;
                now.take(&sample);
                if sample.gone.is_some() {
                    return Ok(Some(sample));
                }
            }
            Next::Ready => {
                // The input may be an incomplete event.
                while event::poll(Duration::ZERO)? {
                    let Event::Key(key) = event::read()? else { continue };
                    if key.kind == KeyEventKind::Release {
                        continue;
                    }
                    match key.code {
                        KeyCode::Char('q') => return Ok(now.last),
                        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                            return Ok(now.last);
                        }
                        KeyCode::Char('s') => order = order.next(),
                        KeyCode::Char('p' | ' ') => {
                            paused = if paused.is_some() { None } else { Some(now.clone()) };
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

fn draw(frame: &mut Frame<'_>, screen: &Screen, order: Order, is_paused: bool) {
    let [totals, spark, table, keys] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Length(6),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());

    let text = screen.last.as_ref().map_or_else(
        || "the first interval is running".to_owned(),
        |sample| {
            format!(
                "{} pages/s ({}/s)   working set {} ({} pages) in {} s\nassumed dirty {} pages",
                grouped(sample.rate().round() as u64),
                bytes(sample.rate().round() as u64),
                bytes(sample.working_set),
                grouped(sample.working_set),
                screen.window.as_secs_f64(),
                grouped(sample.assumed),
            )
        },
    );
    frame.render_widget(
        ratatui::widgets::Paragraph::new(text).block(Block::bordered().title(screen.title.as_str())),
        totals,
    );

    let most = screen.rates.iter().max().copied().unwrap_or(0);
    let title = format!(" pages/s, newest on the right, highest {} ", grouped(most));
    let rates: Vec<u64> = screen.rates.iter().copied().collect();
    frame.render_widget(
        Sparkline::default()
            .direction(RenderDirection::RightToLeft)
            .data(&rates)
            .block(Block::bordered().title(title)),
        spark,
    );

    let rows =
        screen.ordered(order).into_iter().take(usize::from(table.height)).map(|((start, name), written)| {
            Row::new([
                grouped(written.rate.round() as u64),
                grouped(written.total),
                grouped(written.assumed),
                format!("{start}-{:x}", written.end),
                tail(name, usize::from(table.width).saturating_sub(BEFORE_NAME)),
            ])
        });
    let widths = [
        Constraint::Length(10),
        Constraint::Length(12),
        Constraint::Length(10),
        Constraint::Length(25),
        Constraint::Min(10),
    ];
    let header = Row::new(["pages/s", "total", "assumed", "addresses", "mapping"])
        .style(Style::new().add_modifier(Modifier::BOLD));
    let title = format!(" mappings by {} ", order.name());
    frame.render_widget(Table::new(rows, widths).header(header).block(Block::bordered().title(title)), table);

    let state = if is_paused { "  PAUSED: display stopped, tracking continues" } else { "" };
    frame.render_widget(Line::from(format!(" q quit   s sort   p pause{state}")), keys);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::dirty::sample::MappingSample;

    fn sample(t: f64, name: &str, written: u64) -> Sample {
        let (start, end) = (Address(0x1000), Address(0x9000));
        let mapping = MappingSample { start, end, name: name.into(), written, assumed: 0 };
        Sample {
            t,
            seconds: 0.5,
            written,
            assumed: 0,
            assumed_why: BTreeMap::new(),
            working_set: 3,
            mappings: vec![mapping],
            gone: None,
        }
    }

    #[test]
    fn shows_the_busiest_first_and_fits_any_terminal() {
        let mut screen = Screen {
            title: " 1 (init) ".into(),
            window: Duration::from_secs(10),
            last: None,
            rates: VecDeque::new(),
            mappings: BTreeMap::new(),
        };
        screen.take(&sample(0.5, "[heap]", 1000));
        screen.take(&sample(1.0, "[stack]", 4));
        let names =
            |order| screen.ordered(order).into_iter().map(|(key, _)| key.1.as_str()).collect::<Vec<_>>();
        assert_eq!(names(Order::Rate), ["[stack]", "[heap]"]);
        assert_eq!(names(Order::Total), ["[heap]", "[stack]"]);

        let mut terminal = Terminal::new(TestBackend::new(80, 20)).unwrap();
        terminal.draw(|frame| draw(frame, &screen, Order::Rate, true)).unwrap();
        let shown = terminal.backend().to_string();
        for part in [
            "8 pages/s",
            "working set 12.0 KiB (3 pages)",
            "1000-9000",
            "highest 2,000",
            "PAUSED",
            "assumed dirty 0 pages",
        ] {
            assert!(shown.contains(part), "{part} is missing in\n{shown}");
        }
        // 2,000 pages a second, then 8: the newest, next to the right border, is the low one.
        let lowest: Vec<char> =
            shown.lines().nth(8).unwrap().trim_matches('"').chars().rev().take(3).collect();
        assert_eq!(lowest, ['│', ' ', '█'], "the newest is not on the right:\n{shown}");
        for (width, height) in [(1, 1), (20, 5), (300, 80)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &screen, Order::Address, false)).unwrap();
        }
    }
}
