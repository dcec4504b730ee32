"""The report as one HTML file that needs nothing else.

Analysis
  |  sections.sections()         values, figures, scripts and data of each part
  v
Section, Section, ...            "kernels" -> templates/kernels.html.j2, tables.js
  |  html.render_html()          as many characters of names as the page has room for
  v
<!doctype html> ...              one file; a policy lets its own scripts run and nothing else

Comparison -> comparison.render_comparison_page()        Analysis -> notebook.card(), Plots
"""
