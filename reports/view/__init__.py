"""The report as one document: tables, sentences and numbers that every renderer shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.reports.view.author_notes import (
        NOTHING,
        Authored,
        NoteBlock,
        authored,
        base_names,
    )
    from traceflops.reports.view.chapters import ALONE, Chapter, post_mortem
    from traceflops.reports.view.compared_kernels import counted_change
    from traceflops.reports.view.comparison import (
        cause_label,
        changed_causes,
        changed_parts,
        comparison_tables,
        interval_ends,
        memory_table,
        mfu_sentence,
        more_sentences,
        parts_table,
        runs_table,
        share_words,
        sides_table,
        unlike_table,
    )
    from traceflops.reports.view.counted import counted_table, decisive_column, speeds_table
    from traceflops.reports.view.critical import (
        critical_object,
        critical_sentence,
        critical_tables,
        path_word,
        sums_by_component,
    )
    from traceflops.reports.view.culprits import (
        WaitedFor,
        gap_culprits,
        length_label,
        pace_sentence,
        waited_for,
        waits,
    )
    from traceflops.reports.view.figures import (
        TIME_UNITS,
        UNKNOWN,
        apportioned,
        as_float,
        count,
        duration,
        fields,
        flop_count,
        flop_scale,
        flops,
        kernel_label,
        kernel_text,
        mean_count,
        percent,
        place,
        ratio,
        shorten_middle,
        significant,
        size,
        time_share,
        unit_for,
        visible,
        with_sign,
        wrapped,
    )
    from traceflops.reports.view.findings import (
        FindingWords,
        Opening,
        background,
        causes,
        headline,
        left_to_say,
        opening,
        other_findings,
        title_finding,
        title_sentence,
    )
    from traceflops.reports.view.gpu_samples import THROTTLED_BY, gpu_samples_table
    from traceflops.reports.view.host import host_tables
    from traceflops.reports.view.ledger import (
        LedgerCells,
        is_unsplit,
        ledger_cells,
        ledger_rows,
        mean_ledger,
    )
    from traceflops.reports.view.owners import (
        OWNER_WORDS,
        attribution_sentence,
        owner_tables,
        owners_table,
    )
    from traceflops.reports.view.palette import (
        CAUSE_LABELS,
        LINE_LOOKS,
        LOOKS,
        Look,
        category_label,
        look,
        loss_label,
    )
    from traceflops.reports.view.pipelines import pipeline_sentences, pipeline_tables
    from traceflops.reports.view.profiler_rules import SAYS, RulesOfKernel, rules_said
    from traceflops.reports.view.serving import WAITS_ON, serving_table
    from traceflops.reports.view.short_names import (
        Label,
        kernel_labels,
        labels,
        short_labels,
    )
    from traceflops.reports.view.step_split import (
        CULPRIT,
        StepAfter,
        StepPart,
        blamed,
        step_after,
        step_parts,
    )
    from traceflops.reports.view.tables import (
        Cell,
        Column,
        Name,
        ReportTable,
        Share,
        components_table,
        folded_tables,
        jobs_table,
        spaced,
        sums_by_kind,
        synchronisations_table,
        table_of,
        untimed_tables,
        waits_table,
        waterfall_table,
    )
    from traceflops.reports.view.texts import all_texts, fields_of, words
    from traceflops.reports.view.utilisation import (
        ABOVE,
        AT_MOST,
        SLOW,
        THOUSAND,
        Fact,
        UtilisationPart,
        bound_word,
        bounds_sentence,
        facts,
        parts,
        rate_words,
        recoverable_ns,
        roof,
        roofline,
        share_of_bandwidth,
        share_of_link,
        share_of_roof,
        why_not,
    )
    from traceflops.reports.view.who_waits import (
        busbw_words,
        clocks_sentence,
        late_rank_words,
        own_times,
        ranks_table,
        rates_table,
        signed,
        waiting_sentence,
        waiting_table,
        worst_collectives,
    )
    from traceflops.reports.view.wording import (
        OVERLAPS,
        basis,
        collective_label,
        collective_rate,
        component_label,
        doubts,
        each,
        gap_place,
        job_files,
        job_size,
        knows_exposure,
        listed,
        mean_message,
        notes_by_weight,
        numbered,
        overlap,
        process_label,
        products,
        provenance,
        ranks,
        selected,
        shape_words,
        some_files,
        step_times,
        steps_counted,
        steps_used,
        time_shared,
        type_words,
        uneven_steps,
        unit,
    )
else:
    __getattr__ = lazy(__name__, __file__)
