"""Draws the learning curves of training runs: learning_curve.png in the first model_dir.

python eval/learning_curve.py --model_dir=MODEL
"""
