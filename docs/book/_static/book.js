// A button beside each display formula that copies its TeX.
addEventListener("DOMContentLoaded", () => {
  for (const formula of document.querySelectorAll("div.math")) {
    const button = document.createElement("button");
    button.className = "copy-tex";
    button.textContent = "TeX";
    button.title = "Copy the formula as TeX";
    button.onclick = () => navigator.clipboard.writeText(formula.dataset.tex);
    formula.append(button);
  }
});
