// Runs before anything is drawn: applies the chosen theme, or that of the system.
(() => {
  const THEMES = ["auto", "light", "dark"];
  const KEY = "trunkline-theme";
  const stored = () => { try { return localStorage.getItem(KEY); } catch { return null; } };

  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };

  let theme = THEMES.includes(stored()) ? stored() : "auto";
  apply(theme);

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => { button.textContent = `theme: ${theme}`; };
    name();
    button.addEventListener("click", () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      try { localStorage.setItem(KEY, theme); } catch { /* it lasts until the page is closed */ }
      apply(theme);
      name();
    });
  });
})();
